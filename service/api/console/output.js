// A job's output on the page: the last lines of it, drawn in blocks that the browser passes over out of sight.

import { ask, follow } from "./api.js";
import { attempt, copy, fill, h, say, template } from "./dom.js";
import { Terminal } from "./terminal.js";
import { size } from "./text.js";

const EVERY = 100; // ms between two drawings
const MOST_FOUND = 1000;
const LAST = 2_000_000; // bytes that are read of an output that is over, from its end

/** One output of a job: `stream` names which, where it has two. */
export class Output {
	constructor(commandId, { stream = null, signal }) {
		const query = stream ? `?stream=${stream}` : "";
		this._path = (what) => `exec-jobs/${encodeURIComponent(commandId)}/${what}${query}`;
		this._name = `${commandId}${stream ? `.${stream}` : ""}.log`;
		Object.assign(this, { _signal: signal, _terminal: new Terminal(), _drawn: new Map(), _found: [], _at: -1, _before: "" });
		this.element = template("output");
		const [search, follow, wrap] = this.element.querySelectorAll("input");
		const [copies, downloads] = this.element.querySelectorAll("button");
		[this._hits, this._note] = this.element.querySelectorAll("[role=status]");
		this._text = this.element.querySelector(".output");
		Object.assign(this, { _search: search, _follow: follow });
		const on = (element, event, act) => element.addEventListener(event, act);
		on(search, "input", () => this._find());
		on(search, "keydown", (event) => this._next(event));
		on(follow, "change", () => this._draw());
		on(wrap, "change", () => this._text.classList.toggle("wrap"));
		on(copies, "click", () => copy(this._terminal.text(), "Output"));
		on(downloads, "click", () => attempt(() => this._download(downloads)));
		on(this._text, "scroll", () => this._scrolled());
		this._text.ariaLabel += stream ? `, ${stream}` : "";
	}

	put(text) {
		this._terminal.write(text);
		this._planned ??= setTimeout(() => this._draw(), EVERY);
	}

	/** Shows the output as it comes. `told` gets the job each time that it is another. */
	async live(told) {
		await follow(this._path("events"), async (name, data) => {
			if (name !== "output") return told(data);
			if (data.replace) this._terminal.clear();
			if (data.skipped_bytes) this._skipped(data.skipped_bytes);
			this.put(data.output);
			return new Promise((resolve) => setTimeout(resolve)); // what people do comes first
		}, this._signal);
		this._draw();
	}

	/** Shows the end of an output that will not grow any more. */
	async ended() {
		const options = { headers: { Range: `bytes=-${LAST}` }, signal: this._signal };
		const answer = await ask(this._path("output"), options).catch((problem) => {
			if (problem.status !== 416) throw problem; // nothing was printed
		});
		if (answer) {
			const before = Number(/bytes (\d+)-/.exec(answer.headers.get("Content-Range"))?.[1] ?? 0);
			const skipped = Number(answer.headers.get("Oncebox-Skipped-Bytes") ?? 0);
			const text = new TextDecoder().decode(await answer.arrayBuffer());
			if (before > skipped) this._before = `The first ${size(before)} are not shown; download all of it. `;
			else if (skipped) this._skipped(skipped);
			this.put(before ? text.slice(text.indexOf("\n") + 1) : text);
		}
		this._draw();
	}

	_skipped(bytes) {
		this._before = `The first ${size(bytes)} are no longer kept. `;
	}

	_draw() {
		clearTimeout(this._planned);
		this._planned = null;
		const { blocks, dropped, count, open } = this._terminal;
		const kept = new Set(blocks.map((block) => block.number));
		for (const [number, drawn] of this._drawn) {
			if (kept.has(number)) continue;
			drawn.element.remove();
			this._drawn.delete(number);
		}
		for (const block of blocks) this._block(block, block === blocks.at(-1) ? [...block.lines, open] : block.lines);
		const held = dropped ? `Only the last ${count} lines are shown; download all of it.` : "";
		fill(this._note, this._before + (held || (count || open.length ? "" : "No output yet.")));
		if (this._search.value) this._find();
		if (this._follow.checked) this._text.scrollTop = this._text.scrollHeight;
	}

	_block(block, lines) {
		const drawn = this._drawn.get(block.number) ?? { element: h("div", { class: "block" }) };
		if (drawn.changed === block.changed) return;
		drawn.changed = block.changed;
		if (!this._drawn.has(block.number)) this._text.append(drawn.element);
		this._drawn.set(block.number, drawn);
		drawn.element.style.setProperty("--lines", lines.length);
		drawn.element.replaceChildren(...runs(lines));
	}

	_scrolled() {
		const { scrollTop, scrollHeight, clientHeight } = this._text;
		if (scrollTop < this._top && scrollHeight - scrollTop - clientHeight > 60) this._follow.checked = false;
		this._top = scrollTop;
	}

	_find() {
		const wanted = this._search.value.toLowerCase();
		this._found = wanted ? ranges(this._text, wanted) : [];
		mark("found", this._found);
		const more = this._found.length < MOST_FOUND ? "" : " or more";
		fill(this._hits, wanted ? `${this._found.length}${more} found` : "");
	}

	_next(event) {
		if (event.key !== "Enter" || !this._found.length) return;
		this._follow.checked = false;
		this._at = (this._at + (event.shiftKey ? -1 : 1) + this._found.length) % this._found.length;
		const range = this._found[this._at];
		mark("now", [range]);
		range.startContainer.parentElement.scrollIntoView({ block: "nearest" });
		const place = range.getBoundingClientRect().top - this._text.getBoundingClientRect().top;
		this._text.scrollTop += place - this._text.clientHeight / 2;
		fill(this._hits, `${this._at + 1} of ${this._found.length}`);
	}

	/** All of it as a file, straight from the service. */
	async _download(pressed) {
		await save(await ask(this._path("output"), { signal: this._signal }), this._name, pressed);
	}
}

function mark(name, found) {
	if (globalThis.Highlight) CSS.highlights.set(name, new Highlight(...found));
}

/** Text nodes and spans for lines of runs; what is coloured alike is one text. */
function runs(lines) {
	const joined = [];
	const add = (text, name) => {
		if (joined.at(-1)?.name === name) joined.at(-1).texts.push(text);
		else joined.push({ texts: [text], name });
	};
	lines.forEach((line, at) => {
		if (at) add("\n", "");
		for (const [text, name] of line) add(text, name);
	});
	return joined.map(({ texts, name }) => {
		const node = document.createTextNode(texts.join(""));
		if (!name) return node;
		const span = document.createElement("span");
		span.className = name;
		span.append(node);
		return span;
	});
}

function ranges(root, wanted) {
	const found = [];
	for (const block of root.children) {
		const pieces = [];
		let text = "";
		const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
		for (let node; (node = walker.nextNode()); text += node.data) pieces.push([text.length, node]);
		text = text.toLowerCase();
		for (let at = text.indexOf(wanted); at >= 0 && found.length < MOST_FOUND; at = text.indexOf(wanted, at + wanted.length)) {
			const range = new Range();
			range.setStart(...place(pieces, at, 0));
			range.setEnd(...place(pieces, at + wanted.length - 1, 1));
			found.push(range);
		}
	}
	return found;
}

function place(pieces, at, more) {
	const [start, node] = pieces.findLast(([begins]) => begins <= at);
	return [node, Math.min(at - start + more, node.length)];
}

/** Saves a body as a file, by way of a blob: browsers keep a large one on disk. `pressed` tells how far it is. */
export async function save(answer, name, pressed) {
	const [before, parts] = [pressed.textContent, []];
	const reader = answer.body.getReader();
	let bytes = 0;
	for (let read; !(read = await reader.read()).done; ) {
		parts.push(read.value);
		bytes += read.value.length;
		if (parts.length < 64) continue;
		parts.splice(0, 64, new Blob(parts));
		fill(pressed, `${size(bytes)} so far`);
	}
	const link = h("a", { href: URL.createObjectURL(new Blob(parts)), download: name });
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
	fill(pressed, before);
}
