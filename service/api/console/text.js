// Text as people read it: nothing in here touches the document.

/* Control characters, and those that turn the direction of what follows. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|[\ud800-\udfff]/gu;

/** `text` on one line, its unseen characters made visible: it comes from others. */
export function visible(text) {
	return String(text).replace(UNSEEN, seen);
}

function seen(char) {
	if (char === "\n") return "⏎";
	if (char === "\t") return " ";
	const code = char.codePointAt(0);
	const hex = code.toString(16);
	return code < 0x100 ? `\\x${hex.padStart(2, "0")}` : code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\u{${hex}}`;
}

/** Bytes, for people. */
export function size(count) {
	if (count < 1000) return `${count} B`;
	for (const unit of ["kB", "MB", "GB"]) {
		count /= 1000;
		if (count < 999.5 || unit === "GB") return `${Number(count.toPrecision(3))} ${unit}`;
	}
}

export function duration(seconds) {
	const whole = Math.max(0, Math.floor(seconds));
	if (whole < 60) return `${whole} s`;
	const two = (number) => String(number).padStart(2, "0");
	const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
	return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** How long from one time of the API to another, or to now. */
export function between(first, last) {
	return first ? duration(((last ? Date.parse(last) : Date.now()) - Date.parse(first)) / 1000) : "";
}

/** How long since or until a time, in one unit. */
export function ago(time, now = Date.now()) {
	if (!time) return "";
	const seconds = Math.abs(now - Date.parse(time)) / 1000;
	for (const [unit, length, limit] of [["s", 1, 90], ["min", 60, 90], ["h", 3600, 48]]) {
		if (seconds < limit * length) return `${Math.round(seconds / length)} ${unit}`;
	}
	return `${Math.round(seconds / 86400)} d`;
}

/** `90`, `90s`, `1h30m` as seconds; else null. */
export function seconds(text) {
	const found = /^(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s?)?$/i.exec(text.trim());
	if (!found || found.slice(1).every((part) => part === undefined)) return null;
	return found.slice(1).reduce((sum, part, at) => sum + Number(part || 0) * [86400, 3600, 60, 1][at], 0);
}

/** `a=b, c=d` as `["a=b", "c=d"]`; throws where a part is no such pair. */
export function pairs(text) {
	const parts = text.split(",").map((part) => part.trim()).filter(Boolean);
	const wrong = parts.find((part) => part.indexOf("=") < 1);
	if (wrong !== undefined) throw new Error(`${wrong} is not of the form name=value`);
	return parts;
}

export function labels(metadata) {
	return Object.entries(metadata).map(([name, value]) => `${name}=${value}`).join(", ");
}

export const short = (id) => id.slice(-12);

export const over = (job) => !["pending", "running", "unknown"].includes(job.state);

export function inWords(job) {
	if (job.state === "exited") return `exited with ${job.exit_code}`;
	if (job.state === "timed_out") return job.timeout ? `timed out after ${duration(job.timeout)}` : "timed out";
	return job.state;
}

/** How a state is coloured: `good`, `busy`, `odd` or `bad`. */
export function tone(item) {
	if (item.state === "exited") return item.exit_code === 0 ? "good" : "bad";
	if (["failed", "lost"].includes(item.state)) return "bad";
	if (["unknown", "timed_out", "cancelled", "paused", "terminated", "stopping"].includes(item.state)) return "odd";
	return "busy";
}
