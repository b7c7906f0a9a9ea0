// The overview: jobs or sandboxes, newest first, with what is counted, and filters that stand in the address.

import { format, query } from "./address.js";
import { json, repeat, turn } from "./api.js";
import { chart } from "./charts.js";
import { attempt, badge, button, fill, h, say, since, template, time } from "./dom.js";
import { Listing } from "./listing.js";
import { ago, between, inWords, labels, over, pairs, short, tone } from "./text.js";
import { Table } from "./virtual.js";

const PAGE = 200;
const OLD = { "Cache-Control": "max-age=5" }; // so many who look are one who asks the engine

const JOBS = {
	path: "exec-jobs",
	names: ["sandbox_id", "state", "metadata", "kind", "q"],
	every: 2000,
	order: { id: (job) => job.command_id, when: (job) => job.submitted_at ?? "", busy: (job) => !over(job) },
	columns: [
		{ title: "State", class: "state", cell: (job) => badge(job.state === "exited" ? inWords(job) : job.state, tone(job)) },
		{ title: "Command", class: "wide", cell: (job) => h("a", { href: format("job", job.command_id) }, job.command || job.command_id) },
		{ title: "Sandbox", class: "id", cell: (job) => h("a", { href: format("sandbox", job.sandbox_id), title: job.sandbox_id }, short(job.sandbox_id)) },
		{ title: "Submitted", class: "when", cell: (job) => since(job.submitted_at) },
		{ title: "Took", class: "took", cell: (job) => between(job.started_at, job.finished_at) },
		{ title: "Metadata", class: "labels", cell: (job) => labels(job.metadata) },
	],
	none: ["There are no jobs yet.", "Start one on a sandbox's page, or with oncebox run -- COMMAND."],
};

const SANDBOXES = {
	path: "sandboxes",
	names: ["state", "metadata", "q"],
	every: 5000,
	order: { id: (box) => box.sandbox_id, when: (box) => box.created_at ?? "", busy: () => true },
	columns: [
		{ title: "State", class: "state", cell: (box) => badge(box.state, tone(box)) },
		{ title: "Sandbox", class: "wide", cell: (box) => h("a", { href: format("sandbox", box.sandbox_id) }, box.sandbox_id) },
		{ title: "Image", class: "image", cell: (box) => box.image ?? "" },
		{ title: "Created", class: "when", cell: (box) => since(box.created_at) },
		{ title: "Expires", class: "took", cell: (box) => time(box.expires_at, box.expires_at && `in ${ago(box.expires_at)}`) },
		{ title: "Metadata", class: "labels", cell: (box) => labels(box.metadata) },
	],
	none: ["There are no sandboxes.", "Make one with oncebox sandboxes create."],
};

/** The page of a list. `go` shows another address. */
export function lists(view, filters, { signal, go }) {
	const kind = view === "jobs" ? JOBS : SANDBOXES;
	const counts = h("div", { class: "counts", "aria-label": "Counts", role: "group" });
	const { element, run } = list(kind, filters, signal);
	const failed = (problem) => signal.aborted || say(problem.message, "bad");
	run().catch(failed);
	statistics(counts, view, filters, signal).catch((problem) => problem.status === 404 || failed(problem));
	return h("div", { class: "page" },
		h("h1", {}, view === "jobs" ? "Jobs" : "Sandboxes"), counts, form(kind, view, filters, go), element);
}

/** A list that keeps itself up to date; `run` ends with `signal`. */
function list(kind, filters, signal) {
	const listing = new Listing(kind.order);
	const asked = query(filters, kind.names);
	let reading = false;
	const table = new Table({ label: kind === JOBS ? "Jobs" : "Sandboxes", columns: kind.columns, id: kind.order.id, near });
	const note = h("p", { class: "soft", role: "status" });

	async function read(page) {
		const place = page.token ? `&page_token=${encodeURIComponent(page.token)}` : "";
		listing.merge(page, await json(`${kind.path}?page_size=${PAGE}${place}${asked && `&${asked}`}`, { signal, headers: OLD }));
		show();
	}

	function show() {
		const [title, next] = asked && !kind.fixed ? ["Nothing matches these filters.", "Take one of them away to see more."] : kind.none;
		table.show(listing.items, h("div", {}, h("p", {}, title), h("p", { class: "soft" }, next)));
		const more = listing.next ? ", and more below" : "";
		fill(note, listing.items.length ? `${listing.items.length} shown${more}` : "");
	}

	async function near() {
		if (reading || !listing.begun || !listing.next) return;
		reading = true;
		try {
			await turn(signal);
			if (!signal.aborted && listing.next) await read(listing.next);
		} catch (problem) {
			if (!signal.aborted) say(problem.message, "bad");
		}
		reading = false;
		if (listing.next && !signal.aborted) table.draw();
	}

	fill(note, "Loading …");
	return {
		element: h("section", {}, note, table.element),
		run: () => repeat(() => read(listing.refresh()), kind.every, signal),
	};
}

export function jobsOf(sandboxId, signal) {
	return list({ ...JOBS, fixed: true, columns: JOBS.columns.filter((column) => column.class !== "id"),
		none: ["No jobs ran in here yet.", "Run a command above."] }, { sandbox_id: sandboxId }, signal);
}

async function statistics(counts, view, filters, signal) {
	await repeat(async () => {
		const stats = await json("stats", { signal });
		fill(counts,
			h("ul", {}, Object.entries(stats[view] ?? {}).filter(([, count]) => count).map(([state, count]) =>
				h("li", {}, h("a", { href: format(view, "", { ...filters, state: [state] }) }, h("strong", {}, count), ` ${state}`)))),
			chart(stats.minutes, "started", "started"), chart(stats.minutes, "ended", "ended"));
	}, 10_000, signal);
}

function form({ names }, view, filters, go) {
	const made = template(`${view}-filters`);
	const inputs = made.elements;
	for (const name of names) inputs[name].value = [filters[name] ?? []].flat().join(", ");

	function changed(event) {
		event.preventDefault();
		attempt(() => {
			const wanted = {};
			for (const name of names) if (inputs[name].value.trim()) wanted[name] = inputs[name].value.trim();
			if (wanted.metadata) wanted.metadata = pairs(wanted.metadata);
			if (inputs.state.selectedIndex < 0) wanted.state = filters.state; // several, which only a link has
			go(format(view, "", wanted));
		});
	}

	made.addEventListener("submit", changed);
	made.addEventListener("change", changed);
	if (Object.keys(filters).length) made.append(button("Clear filters", () => go(format(view))));
	return made;
}
