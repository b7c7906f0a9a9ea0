// A sandbox: how long it lives, what ran in it, its files, and a place to run a command.

import { format } from "./address.js";
import { ask, json, newKey, repeat } from "./api.js";
import { attempt, badge, button, confirm, copy, fill, h, say, template, terms, time } from "./dom.js";
import { files } from "./files.js";
import { jobsOf } from "./lists.js";
import { duration, labels, seconds, tone } from "./text.js";

/** The page of a sandbox. `go` shows another address. */
export function sandbox(sandboxId, { signal, go }) {
	const path = `sandboxes/${encodeURIComponent(sandboxId)}`;
	const facts = h("section", { "aria-label": "Facts" }, h("p", { class: "soft", role: "status" }, "Loading …"));
	const left = h("span", { role: "timer" });
	const page = h("div", { class: "page" }, h("h1", {}, "Sandbox"), facts);
	let seen = null;

	const clock = setInterval(() => count(), 1000);
	signal.addEventListener("abort", () => clearInterval(clock));
	repeat(look, 5000, signal).catch((problem) => {
		if (signal.aborted) return;
		const text = problem.status === 404 ? "No such sandbox is known here: it was deleted, or never was." : problem.message;
		fill(page, h("h1", {}, "Sandbox"), h("p", {}, text), h("p", {}, h("a", { href: format("sandboxes") }, "All sandboxes")));
	});
	return page;

	async function look() {
		const first = seen === null;
		told(await json(path, { signal }));
		if (!first) return;
		const jobs = jobsOf(sandboxId, signal);
		page.append(h("h2", {}, "Run a command"), runForm(sandboxId, go), h("h2", {}, "Jobs"), jobs.element, files(path, signal));
		jobs.run().catch((problem) => signal.aborted || say(problem.message, "bad"));
		document.title = `Sandbox ${sandboxId} · Oncebox`;
	}

	function told(now) {
		if (!now) return;
		const same = JSON.stringify(now) === JSON.stringify(seen);
		seen = now;
		if (!same) fill(facts, ...about());
		count();
	}

	function count() {
		if (!seen?.expires_at) return;
		const rest = (Date.parse(seen.expires_at) - Date.now()) / 1000;
		fill(left, rest > 0 ? `in ${duration(rest)}` : "now");
	}

	function about() {
		const act = (verb, done) => () => attempt(async () => told(await json(`${path}/${verb}`, { method: "POST", body: {} })), done);
		const form = template("renew");
		form.addEventListener("submit", (event) => {
			event.preventDefault();
			const body = () => ({ timeout: lasting(form.elements[0].value) });
			attempt(async () => told(await json(`${path}/renew`, { method: "POST", body: body() })), "It lives longer.");
		});
		return [
			h("p", { class: "row" }, badge(seen.state, tone(seen)),
				seen.reason ? h("span", {}, seen.reason) : null,
				seen.ready || seen.state !== "running" ? null : h("span", {}, "not ready yet: its daemon does not answer")),
			h("div", { class: "row" },
				seen.state === "running" ? button("Pause", act("pause", "It is being paused.")) : null,
				seen.state === "paused" ? button("Resume", act("resume", "It is being resumed.")) : null,
				form,
			button("Copy id", () => copy(sandboxId, "Id")),
				button("Delete", remove, { class: "danger" })),
			terms({
				Id: h("code", {}, seen.sandbox_id),
				Image: seen.image,
				CPU: seen.resources?.cpu,
				Memory: seen.resources?.memory,
				Owner: seen.workspace_owner,
				Metadata: labels(seen.metadata),
				Created: seen.created_at && time(seen.created_at),
				Expires: seen.expires_at && h("span", {}, time(seen.expires_at), " ", left),
			}),
		];
	}

	async function remove() {
		if (!(await confirm("Delete this sandbox, with all that runs in it and its files?", "Delete the sandbox"))) return;
		if (await attempt(() => ask(path, { method: "DELETE" }))) go(format("sandboxes"));
	}
}

/** A key is made for the command, and shown: pressing again after an error can't run it twice. */
function runForm(sandboxId, go) {
	const form = template("run");
	const { command, timeout } = form.elements;
	let used;
	const renew = () => fill(form.querySelector("code"), (used = newKey()));
	form.addEventListener("input", renew);
	renew();
	form.addEventListener("submit", (event) => {
		event.preventDefault();
		attempt(async () => {
			const body = { sandbox_id: sandboxId, command: command.value, timeout: lasting(timeout.value) };
			const made = await json("exec-jobs", { method: "POST", body, headers: { "Idempotency-Key": used } });
			go(format("job", made.command_id));
		});
	});
	return form;
}

function lasting(text) {
	const found = seconds(text);
	if (found === null) throw new Error(`${text} is no duration: write 90s or 1h30m.`);
	return found;
}
