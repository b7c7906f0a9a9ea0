// The API: requests with the key of this tab, at the pace that a page may ask, and streams that are taken up again.

import { Events } from "./events.js";

const KEPT = "oncebox-key";
const PACE = 1000; // ms between two requests that nobody clicked for
const ROOT = new URL("v1/", document.baseURI).href;

/** A problem that the service answered, or no answer at all (`status` 0). */
export class Problem extends Error {
	constructor(status, code, detail, retryAfter = 0) {
		super(detail);
		Object.assign(this, { status, code, retryAfter });
	}
}

/* For this tab alone. */
export const key = {
	get: () => sessionStorage.getItem(KEPT),
	set: (value) => sessionStorage.setItem(KEPT, value),
	forget: () => sessionStorage.removeItem(KEPT),
};

/** The answer to a request. Raises `Problem`. */
export async function ask(path, { method = "GET", body, headers = {}, signal, raw } = {}) {
	last = Date.now();
	const sent = { ...headers };
	if (key.get()) sent.Authorization = `Bearer ${key.get()}`;
	if (body !== undefined && !raw) sent["Content-Type"] = "application/json";
	let answer;
	try {
		answer = await fetch(ROOT + path, {
			method, headers: sent, signal, body: raw ? body : body && JSON.stringify(body),
			credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
		});
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw new Problem(0, "UNREACHABLE", "The service does not answer.");
	}
	if (!answer.ok) throw await problem(answer);
	return answer;
}

async function problem(answer) {
	const after = Number(answer.headers.get("Retry-After")) || 0;
	try {
		const { code, detail, errors = [] } = await answer.json();
		const fields = errors.map((error) => `${error.field}: ${error.message}`).join("; ");
		return new Problem(answer.status, code, fields || detail, after);
	} catch {
		return new Problem(answer.status, "UNEXPECTED", `HTTP ${answer.status}, which is no answer of Oncebox.`, after);
	}
}

export async function json(path, options) {
	const answer = await ask(path, options);
	return answer.status === 204 ? null : answer.json();
}

export function newKey() {
	const bytes = crypto.getRandomValues(new Uint8Array(12));
	return `console-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

let last = 0;
let queue = Promise.resolve();

/** Waits for this page's turn to ask for something by itself. */
export function turn(signal) {
	queue = queue.then(async () => {
		for (let wait; !signal.aborted && (wait = last + PACE - Date.now()) > 0; ) await rest(wait, signal);
		last = Date.now();
	});
	return queue;
}

export function rest(ms, signal) {
	return new Promise((resolve) => {
		const timer = setTimeout(done, ms);
		function done() {
			clearTimeout(timer);
			signal.removeEventListener("abort", done);
			resolve();
		}
		signal.addEventListener("abort", done);
	});
}

/** How the page is doing: `tell(problem)` where something is tried again, `tell(null)` where it went well. */
export const health = new EventTarget();
export function tell(trouble) {
	health.dispatchEvent(Object.assign(new Event("change"), { trouble }));
}

/** Does `step` every so many ms, as this page's turn comes and somebody looks, until `signal`; throws what no wait mends. */
export async function repeat(step, every, signal) {
	let failures = 0;
	while (!signal.aborted) {
		await seen(signal);
		await turn(signal);
		if (signal.aborted) return;
		let wait = every;
		try {
			await step();
			if (failures) tell(null);
			failures = 0;
		} catch (error) {
			wait = await trouble(error, (failures += 1), signal);
		}
		await rest(wait, signal);
	}
}

/** Milliseconds until another try; throws what no other try mends. */
async function trouble(error, failures, signal) {
	if (signal.aborted) return 0;
	const passes = error instanceof Problem && (error.status === 0 || error.status === 429 || error.status >= 500);
	if (!passes) throw error;
	tell(error);
	return Math.max(error.retryAfter * 1000, Math.min(1000 * 2 ** failures, 10_000) * (0.5 + Math.random() / 2));
}

function seen(signal) {
	return new Promise((resolve) => {
		function look() {
			if (document.hidden && !signal.aborted) return;
			document.removeEventListener("visibilitychange", look);
			signal.removeEventListener("abort", look);
			resolve();
		}
		document.addEventListener("visibilitychange", look);
		signal.addEventListener("abort", look);
		look();
	});
}

/** Gives `take` each event of a stream until its end; one that breaks off is taken up again behind the last event. */
export async function follow(path, take, signal) {
	let id = null;
	let failures = 0;
	while (!signal.aborted) {
		let wait = PACE;
		try {
			const answer = await ask(path, { signal, headers: { Accept: "text/event-stream", ...(id && { "Last-Event-ID": id }) } });
			if (answer.status === 204) return;
			if (failures) tell(null);
			failures = 0;
			const events = new Events();
			for await (const text of texts(answer.body)) {
				for (const event of events.take(text)) {
					await take(event.event, JSON.parse(event.data));
					id = event.id ?? id;
					if (event.event === "end") return;
				}
			}
		} catch (error) {
			if (signal.aborted) return;
			const broken = error instanceof TypeError ? new Problem(0, "UNREACHABLE", "The connection was lost.") : error;
			wait = await trouble(broken, (failures += 1), signal);
		}
		await rest(wait, signal);
	}
}

async function* texts(body) {
	const reader = body.pipeThrough(new TextDecoderStream()).getReader();
	try {
		for (let read; !(read = await reader.read()).done; ) yield read.value;
	} finally {
		reader.cancel().catch(() => {});
	}
}
