// A terminal's text without a terminal: lines of coloured runs, of which only the last ones are held. No document here.

import { visible } from "./text.js";

const BLOCK = 200; // lines that are drawn, and dropped, together
const LONGEST = 8192; // characters of a line without an end, after which it is broken
const SEQUENCE = 4096; // characters of a sequence that may still become whole

const SPECIAL = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
/* CSI; OSC, DCS and the like, to their ends; other escapes. */
const ESCAPE = /\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-OQ-WYZ\\`-~]/y;
const BEGUN = /\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)$/y;

/* What SGR codes switch on and off, and the class of each. */
const ON = { 1: "b", 2: "d", 3: "i", 4: "u", 7: "inverse", 9: "s" };
const OFF = { 22: ["b", "d"], 23: ["i"], 24: ["u"], 27: ["inverse"], 29: ["s"] };

/** Text comes in by `write`; `blocks` holds what is left of it: at most `most` characters and `mostLines` lines. */
export class Terminal {
	constructor({ most = 4_000_000, mostLines = 20_000 } = {}) {
		Object.assign(this, { most, mostLines, _number: 0 });
		this.clear();
	}

	clear() {
		/** `{number, lines, size, changed}` each; a line is a list of runs `[text, classes]`. */
		this.blocks = [];
		this.dropped = this.held = this.count = 0; // lines that are gone; characters and lines that are held
		this.open = []; // the line that has no end yet
		this._length = this._column = 0;
		this._rest = this._class = "";
		this._style = {};
		this._block();
	}

	write(text) {
		text = this._rest + text;
		this._rest = "";
		for (let at = 0; at < text.length; ) {
			SPECIAL.lastIndex = at;
			const found = SPECIAL.exec(text);
			const end = found ? found.index : text.length;
			if (end > at) this._put(text.slice(at, end));
			at = found?.[0] === "\x1b" ? this._escape(text, end) : end + 1;
			if (found) this._control(found[0]);
		}
		this._last().changed += 1;
	}

	/** All lines as text, the open one too. */
	text() {
		const lines = [...this.blocks.flatMap((block) => block.lines), this.open];
		return lines.map((line) => line.map((run) => run[0]).join("")).join("\n");
	}

	_control(char) {
		if (char === "\n") this._newline();
		else if (char === "\r") this._column = 0;
		else if (char === "\b") this._column = Math.max(0, this._column - 1);
		else if (!"\x07\x0e\x0f\x1b".includes(char)) this._put(visible(char));
	}

	_last() {
		return this.blocks[this.blocks.length - 1];
	}

	_block() {
		this._number += 1;
		this.blocks.push({ number: this._number, lines: [], size: 0, changed: 0 });
	}

	_put(text) {
		while (this._length + text.length > LONGEST && this._column === this._length) {
			const room = LONGEST - this._length;
			this._add(text.slice(0, room));
			this._newline();
			text = text.slice(room);
		}
		if (text) this._add(text);
	}

	_add(text) {
		const end = this._column + text.length;
		const last = this.open[this.open.length - 1];
		if (this._column < this._length) { // a progress bar, behind a carriage return
			this.open = [...cut(this.open, 0, this._column), [text, this._class], ...cut(this.open, end, this._length)];
		} else if (last?.[1] === this._class) last[0] += text;
		else this.open.push([text, this._class]);
		this._column = end;
		this._length = Math.max(this._length, end);
	}

	_newline() {
		if (this._last().lines.length >= BLOCK) {
			this._last().changed += 1;
			this._block();
		}
		const block = this._last();
		block.lines.push(this.open);
		block.size += this._length + 1;
		this.held += this._length + 1;
		this.count += 1;
		this.open = [];
		this._length = this._column = 0;
		while (this.blocks.length > 1 && (this.held > this.most || this.count > this.mostLines)) {
			const first = this.blocks.shift();
			this.held -= first.size;
			this.count -= first.lines.length;
			this.dropped += first.lines.length;
		}
	}

	/** The place behind the sequence at `at`, or the end where the rest of it has not come yet. */
	_escape(text, at) {
		ESCAPE.lastIndex = BEGUN.lastIndex = at;
		const found = ESCAPE.exec(text)?.[0];
		if (!found) {
			if (text.length - at < SEQUENCE && BEGUN.test(text)) {
				this._rest = text.slice(at);
				return text.length;
			}
			this._put(visible("\x1b"));
			return at + 1;
		}
		const parameters = found.slice(2, -1);
		if (found[1] === "[" && found.endsWith("m") && /^[\d;:]*$/.test(parameters)) this._colours(parameters);
		if (found === "\x1b[K" || found === "\x1b[0K") this._erase();
		if (found === "\x1b[2K") {
			this._erase();
			this.open = [[" ".repeat(this._column), ""]];
		}
		return at + found.length;
	}

	_erase() {
		this.open = cut(this.open, 0, this._column);
		this._length = this._column;
	}

	_colours(parameters) {
		const codes = parameters.replace(/\b4:\d/g, "4").split(/[;:]/).map(Number);
		for (let at = 0; at < codes.length; at += 1) {
			const code = codes[at];
			const [tens, ones] = [Math.floor(code / 10), code % 10];
			const ground = tens === 3 || tens === 9 ? "f" : "g";
			if (code === 0) this._style = {};
			else if (ON[code]) this._style[ON[code]] = true;
			else if (OFF[code]) for (const name of OFF[code]) delete this._style[name];
			else if (code === 38 || code === 48) {
				const wide = codes[at + 1] === 2;
				this._style[ground] = wide ? nearest(codes.slice(at + 2, at + 5)) : ofPalette(codes[at + 2]);
				at += wide ? 4 : 2;
			} else if ([3, 4, 9, 10].includes(tens) && ones < 8) this._style[ground] = ones + (tens > 4 ? 8 : 0);
			else if (code === 39 || code === 49) delete this._style[ground];
		}
		this._class = classes(this._style);
	}
}

/** The runs between two columns of a line. */
function cut(line, from, to) {
	const kept = [];
	let start = 0;
	for (const [text, name] of line) {
		const part = text.slice(Math.max(0, from - start), Math.max(0, to - start));
		if (part) kept.push([part, name]);
		start += text.length;
	}
	return kept;
}

function classes({ f, g, inverse, ...flags }) {
	if (inverse) [f, g] = [g ?? "n", f ?? "n"];
	const names = Object.keys(flags);
	if (f !== undefined) names.push(`f${f}`);
	if (g !== undefined) names.push(`g${g}`);
	return names.join(" ");
}

/* The style sheet has sixteen, in both themes; all others become one of them. */
function nearest(parts) {
	const most = Math.max(...parts);
	const basic = parts.reduce((sum, part, at) => sum + (part > most / 2 && part > 60 ? 1 << at : 0), 0);
	return basic + (most > 215 || (basic === 0 && most > 20) ? 8 : 0);
}

function ofPalette(number) {
	if (!(number >= 16)) return number || 0;
	if (number >= 232) return nearest(Array(3).fill((number - 232) * 10 + 8));
	return nearest([36, 6, 1].map((step) => (Math.floor((number - 16) / step) % 6) * 51));
}
