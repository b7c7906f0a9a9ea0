// A long list that is read in pages and kept up to date page by page. No document here.

const FULL = 200; // items of a page above which what lies behind it makes a page of its own
const TOP = "~"; // later than all times

/** Items newest first, as far as they were read. `id` and `when` tell an item's; `busy` whether it may still change. */
export class Listing {
	constructor({ id, when, busy }) {
		this._id = id;
		this._when = when;
		this._busy = busy;
		this._turn = 0;
		this.clear();
	}

	clear() {
		/** In order: each begins `below` a time, is asked for by `token`, and goes on to where the next one begins. */
		this.pages = [{ token: null, below: TOP, read: false }];
		this.items = [];
	}

	get begun() {
		return this.pages[0].read;
	}

	/** The page to ask for to have more; undefined where all was read. */
	get next() {
		return this.pages.find((page) => !page.read);
	}

	/** The page to ask for again: every other time the top, else in turn one with something that may still change. */
	refresh() {
		this._turn += 1;
		const changing = this.pages.slice(1).filter((page) => this._within(page).some((item) => !page.read || this._busy(item)));
		return this._turn % 2 || !changing.length ? this.pages[0] : changing[(this._turn / 2) % changing.length];
	}

	/** Takes in what a page is now: `{items, next_page_token}`. */
	merge(page, { items, next_page_token: token }) {
		const at = this.pages.indexOf(page);
		if (at < 0) return; // the list was begun anew meanwhile
		const end = token === null ? "" : items.length ? this._when(items.at(-1)) : page.below;
		const fresh = new Map(items.map((item) => [this._id(item), item]));
		const known = this._within(page);
		const gap = known.length > 0 && !known.some((item) => fresh.has(this._id(item)));
		const kept = this.items.filter((item) => !fresh.has(this._id(item)) && !this._covered(item, page.below, end));
		this.items = [...kept, ...items].sort((one, other) => (this._when(one) < this._when(other) ? 1 : -1));
		page.read = true;
		const later = this.pages.slice(at + 1).filter((held) => token !== null && held.below <= end);
		this.pages = [...this.pages.slice(0, at + 1), ...later];
		if (token !== null) this._continue(at + 1, { token, below: end, read: later.length > 0 && !gap });
	}

	_within(page) {
		const end = this.pages[this.pages.indexOf(page) + 1]?.below ?? "";
		return this.items.filter((item) => this._covered(item, page.below, end));
	}

	/** Whether an answer that begins below one time and ends at another had to name the item, were it still there. */
	_covered(item, below, end) {
		return this._when(item) < below && this._when(item) > end;
	}

	/** `page` goes on where an answer ended: as a page of its own, or as the longer beginning of the next one. */
	_continue(at, page) {
		const after = this.pages[at];
		if (after && after.below === page.below) after.token = page.token;
		else {
			this.pages.splice(at, 0, page);
			if (after && page.read && after.read && this._within(page).length + this._within(after).length <= FULL) {
				this.pages.splice(at + 1, 1);
			}
		}
	}
}
