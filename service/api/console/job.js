// A job: its life, what it prints, and why it is where it is.

import { format } from "./address.js";
import { ask, json, repeat } from "./api.js";
import { attempt, badge, button, confirm, copy, fill, h, say, terms, time, words } from "./dom.js";
import { Output } from "./output.js";
import { between, duration, inWords, labels, over, tone } from "./text.js";

/** The page of a job. */
export function job(commandId, { signal }) {
	const path = `exec-jobs/${encodeURIComponent(commandId)}`;
	const page = h("div", { class: "page" }, h("h1", {}, "Job"), h("p", { class: "soft", role: "status" }, "Loading …"));
	show().catch((problem) => {
		if (signal.aborted) return;
		const gone = problem.status === 404;
		fill(page, h("h1", {}, "Job"), h("p", { class: gone ? "" : "bad" }, gone ? "No such job is known here." : problem.message),
			h("p", {}, h("a", { href: format("jobs") }, "All jobs")));
	});
	return page;

	/** The job; of one whose streams are apart, a stream must be named. */
	async function whole() {
		const read = (more) => json(`${path}?full=true&limit=1${more}`, { signal });
		return read("").catch((problem) => {
			if (problem.status !== 422) throw problem;
			return read("&stream=stdout");
		});
	}

	async function show() {
		let seen = await whole();
		const facts = h("section", { "aria-label": "Facts" });
		const outputs = h("div", {});
		const told = (now) => {
			seen = { ...seen, ...now, command: seen.command, history: now.history ?? seen.history };
			fill(facts, ...about(seen, cancel));
			document.title = `${inWords(seen)} · Oncebox`;
		};
		told(seen);
		fill(page, h("h1", { class: "command" }, seen.command.split("\n")[0] || commandId), facts, h("h2", {}, "Output"), outputs);
		await output(seen, outputs, async (now) => {
			told(now);
			if (seen.history) told(await whole().catch(() => now));
		});
	}

	async function output(seen, outputs, told) {
		if (seen.kind === "exec") return exec(seen, outputs, told);
		const streams = seen.streams === "apart" ? ["stdout", "stderr"] : [null];
		const shown = streams.map((stream) => new Output(commandId, { stream, signal }));
		fill(outputs, shown.map((one, at) => [streams[at] && h("h3", {}, streams[at]), one.element]));
		return Promise.all(shown.map((one, at) => (over(seen) ? one.ended() : one.live(at ? () => {} : told))));
	}

	/** Of an exec the two outputs are there when it is over. */
	async function exec(seen, outputs, told) {
		const until = new AbortController();
		signal.addEventListener("abort", () => until.abort());
		fill(outputs, h("p", { class: "soft", role: "status" }, "The output is here when the command is over."));
		await repeat(async () => {
			const now = await json(path, { signal });
			await told(now);
			if (!over(now)) return;
			until.abort();
			for (const stream of ["stdout", "stderr"]) {
				const one = new Output(commandId, { stream, signal });
				outputs.append(h("h3", {}, stream), one.element);
				one.put(now[stream]);
			}
			outputs.firstChild.remove();
		}, 2000, until.signal);
	}

	async function cancel() {
		if (!(await confirm("Cancel this job? What it did so far is not undone.", "Cancel the job"))) return;
		if (await attempt(() => ask(path, { method: "DELETE" }))) say("It is being cancelled.");
	}
}

function about(seen, cancel) {
	const because = words(seen.reason);
	return [
		h("p", { class: "row" }, badge(inWords(seen), tone(seen)), because && h("span", {}, because),
			seen.fenced ? null : h("span", { class: "soft" }, "It ran unfenced: the sandbox could not hold its mark.")),
		h("p", { class: "row" },
			over(seen) ? null : button("Cancel", cancel, { class: "danger" }),
			button("Copy id", () => copy(seen.command_id, "Id"))),
		life(seen),
		terms({
			Id: h("code", {}, seen.command_id),
			Command: h("code", { class: "whole" }, seen.command),
			Sandbox: h("a", { href: format("sandbox", seen.sandbox_id) }, seen.sandbox_id),
			Kind: seen.kind,
			"Exit code": seen.exit_code === null ? "" : String(seen.exit_code),
			Took: between(seen.started_at, seen.finished_at),
			Timeout: seen.timeout ? duration(seen.timeout) : "",
			Metadata: labels(seen.metadata),
		}),
	];
}

/** The line of time: what happened when, by which replica. */
function life(seen) {
	const steps = seen.history?.length ? seen.history : [
		{ at: seen.submitted_at, state: "submitted" },
		{ at: seen.started_at, state: "started" },
		{ at: seen.finished_at, state: inWords(seen) },
	].filter((step) => step.at);
	return h("ol", { class: "life", "aria-label": "What happened" }, steps.map((step, at) => h("li", {},
		h("strong", {}, words(step.state)),
		step.reason ? `: ${words(step.reason)}` : "",
		h("span", { class: "soft" }, " ", time(step.at),
			at ? `, ${((Date.parse(step.at) - Date.parse(steps[at - 1].at)) / 1000).toFixed(1)} s later` : "",
			step.attempt > 1 ? `, attempt ${step.attempt}` : "", step.replica ? `, replica ${step.replica}` : ""))));
}
