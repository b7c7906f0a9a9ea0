// A table of thousands of rows, of which only those in sight are in the document.

import { fill, h } from "./dom.js";

const AROUND = 8;

/** `columns`: `{title, class, cell(item)}` each. `id` names an item; `near` is called as the end comes into sight. */
export class Table {
	constructor({ label, columns, id, near }) {
		Object.assign(this, { _columns: columns, _id: id, _near: near, _items: [], _rows: new Map() });
		this._space = h("div", { class: "space", role: "rowgroup" });
		this._head = h("div", { class: "head", role: "row" },
			columns.map((column) => h("span", { role: "columnheader", class: column.class }, column.title)));
		this._scroller = h("div", { class: "scroller", role: "table", "aria-label": label, tabindex: "0",
			on: { scroll: () => this.draw(), keydown: (event) => this._keys(event) } },
		h("div", { role: "rowgroup" }, this._head), this._space);
		this._empty = h("div", { class: "empty" });
		this.element = h("div", { class: "table" }, this._scroller, this._empty);
		new ResizeObserver(() => this.draw()).observe(this._scroller);
	}

	/** Shows these items; `empty` where there are none. */
	show(items, empty) {
		this._items = items;
		this._scroller.hidden = items.length === 0;
		this._scroller.setAttribute("aria-rowcount", items.length + 1);
		fill(this._empty, items.length ? "" : empty);
		this._empty.hidden = items.length > 0;
		this.draw();
	}

	draw() {
		const height = this._height();
		const top = this._scroller.scrollTop;
		const end = Math.min(this._items.length, Math.ceil((top + this._scroller.clientHeight) / height) + AROUND);
		this._space.style.setProperty("height", `${this._items.length * height}px`);
		const wanted = new Map();
		for (let at = Math.max(0, Math.floor(top / height) - AROUND); at < end; at += 1) wanted.set(this._id(this._items[at]), at);
		for (const [id, row] of this._rows) {
			if (wanted.has(id) || row.element.contains(document.activeElement)) continue;
			row.element.remove();
			this._rows.delete(id);
		}
		for (const [id, at] of wanted) this._place(id, at, height);
		if (end > this._items.length - 2 * AROUND) this._near();
	}

	_height() {
		return parseFloat(getComputedStyle(this._space).getPropertyValue("--row")) || 40;
	}

	_place(id, at, height) {
		const row = this._rows.get(id) ?? { element: h("div", { class: "line", role: "row" }), at: -1 };
		this._rows.set(id, row);
		this._columns.forEach((column, number) => {
			const made = h("span", { role: "cell", class: column.class }, column.cell(this._items[at]));
			const cell = row.element.children[number];
			if (!cell) row.element.append(made);
			else if (cell.textContent !== made.textContent) cell.replaceChildren(...made.childNodes); // the focus stays
		});
		if (row.at === at) return;
		row.element.style.setProperty("transform", `translateY(${at * height}px)`);
		row.element.setAttribute("aria-rowindex", at + 2);
		if (row.at < 0) {
			const after = [...this._rows.values()].filter((other) => other.at > at).sort((one, other) => one.at - other.at)[0];
			this._space.insertBefore(row.element, after?.element ?? null);
		}
		row.at = at;
	}

	_keys(event) {
		const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
		const now = [...this._rows.values()].find((row) => row.element.contains(document.activeElement));
		const at = now ? now.at + step : 0;
		if (!step || at < 0 || at >= this._items.length) return;
		event.preventDefault();
		const height = this._height();
		const room = this._scroller.clientHeight - this._head.offsetHeight - height;
		this._scroller.scrollTop = Math.max(at * height - room, Math.min(at * height, this._scroller.scrollTop));
		this.draw();
		this._rows.get(this._id(this._items[at])).element.querySelector("a").focus();
	}
}
