// Building the document: text is always text, whatever it holds.

import { ago, visible } from "./text.js";

/** An element. `props.on` holds listeners, all else are attributes (true: no value; null, false: none). */
export function h(tag, props = {}, ...children) {
	const element = document.createElement(tag);
	for (const [name, value] of Object.entries(props)) {
		if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
		else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
	}
	element.append(...nodes(children));
	return element;
}

function nodes(children) {
	return children.flat(Infinity).filter((child) => child || child === 0)
		.map((child) => (child instanceof Node ? child : document.createTextNode(visible(child))));
}

export function fill(element, ...children) {
	element.replaceChildren(...nodes(children));
	return element;
}

export function button(text, act, props = {}) {
	return h("button", { type: "button", ...props, on: { click: act } }, text);
}

/** A time in the reader's zone, the exact one on hover. */
export function time(text, shown) {
	if (!text) return h("span", {}, "–");
	return h("time", { datetime: text, title: text }, shown ?? new Date(text).toLocaleString());
}

export const since = (text) => time(text, text && `${ago(text)} ago`);

/** Says something to those who look and those who listen; it goes by itself. */
export function say(text, tone = "") {
	const told = h("p", { class: tone }, text);
	document.getElementById("told").append(told);
	setTimeout(() => told.remove(), 8000);
}

/** Runs what a click asked for; says what went wrong. */
export async function attempt(work, done) {
	try {
		const result = await work();
		if (done) say(done);
		return result;
	} catch (error) {
		say(error.message, "bad");
		return undefined;
	}
}

/** Asks before what can't be undone; true after a yes. */
export function confirm(question, yes) {
	return new Promise((resolve) => {
		const dialog = template("confirm");
		fill(dialog.querySelector("h2"), question);
		fill(dialog.querySelector(".danger"), yes);
		dialog.addEventListener("close", () => {
			dialog.remove();
			resolve(dialog.returnValue === "yes");
		});
		document.body.append(dialog);
		dialog.showModal();
	});
}

/** Copies text; in the old way where the page did not come by https. */
export async function copy(text, what) {
	try {
		await navigator.clipboard.writeText(text);
	} catch {
		const field = h("textarea", { class: "away", "aria-hidden": "true" });
		field.value = text;
		document.body.append(field);
		field.select();
		document.execCommand("copy");
		field.remove();
	}
	say(`${what} copied.`);
}

export const badge = (text, tone) => h("span", { class: `badge ${tone}` }, text);

/** Terms and what they are; those without anything are left out. */
export function terms(entries) {
	const rows = Object.entries(entries).filter(([, value]) => value);
	return h("dl", { class: "terms" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** What a reason or a state means, as the page's own document says it; else the word itself. */
export function words(name) {
	const said = document.getElementById("words").content.querySelector(`[id="${CSS.escape(name ?? "")}"]`);
	return said ? said.textContent : name ?? "";
}

/** A copy of what the page's own document has under a name. */
export const template = (name) => document.getElementById(name).content.firstElementChild.cloneNode(true);
