// A sandbox's files: browse, look at, download, and upload by dropping.

import { ask, json, turn } from "./api.js";
import { attempt, button, fill, h, say, template, time } from "./dom.js";
import { save } from "./output.js";
import { size } from "./text.js";

const SHOWN = 100_000; // bytes of a file that are shown

/** The panel; empty where this service has no file routes. `path` is the sandbox's. */
export function files(path, signal) {
	const panel = template("files");
	const place = panel.querySelector("nav");
	const entries = panel.querySelector("ul");
	const [input, zone, view] = ["input", ".drop", "div:last-child"].map((name) => panel.querySelector(name));
	input.addEventListener("change", () => upload(input.files));
	panel.querySelector("button").addEventListener("click", () => input.click());
	zone.addEventListener("dragover", dragover);
	zone.addEventListener("drop", drop);
	let here = "";
	fill(place, button("Show files", () => open("")));
	zone.hidden = true;
	const address = (route, file) => `${path}/${route}?path=${encodeURIComponent(file)}`;
	const below = (name) => (here ? `${here.replace(/\/$/, "")}/${name}` : name);
	turn(signal).then(() => signal.aborted || open(""));
	return panel;

	async function open(directory) {
		try {
			const found = await list(directory || ".");
			here = directory;
			zone.hidden = false;
			show(found);
		} catch (problem) {
			if (signal.aborted) return;
			if (problem.code === "NOT_FOUND") panel.remove(); // no such route
			else say(problem.message, "bad");
		}
	}

	function list(directory) {
		return json(`${address("directories", directory)}&page_size=200`, { signal });
	}

	function show(found) {
		const parts = here.split("/").filter(Boolean);
		const root = here.startsWith("/") ? "/" : "";
		fill(place, button("working directory", () => open("")), button("/", () => open("/")),
			parts.map((part, at) => button(part, () => open(root + parts.slice(0, at + 1).join("/")))));
		fill(entries, found.items.map((file) => entry(file, file.path.split("/").at(-1))));
		if (!found.items.length) fill(entries, h("li", { class: "soft" }, "Nothing in here."));
		if (found.next_page_token) entries.append(h("li", { class: "soft" }, "Only the first 200 are shown."));
	}

	function entry(file, name) {
		const into = file.type === "directory";
		return h("li", { class: "row" },
			button(into ? `${name}/` : name, () => (into ? open(below(name)) : look(below(name), file)), { class: "link" }),
			h("span", { class: "soft" }, into ? "" : size(file.size), " ", time(file.modified_at)),
			into ? null : button("Download", (event) => attempt(() => download(below(name), name, event.target)), { "aria-label": `Download ${name}` }));
	}

	async function look(file, { size: length }) {
		await attempt(async () => {
			const headers = length > SHOWN ? { Range: `bytes=0-${SHOWN - 1}` } : {};
			const answer = await ask(address("files", file), { headers, signal });
			const text = new TextDecoder().decode(await answer.arrayBuffer());
			fill(view, h("h3", {}, file), length > SHOWN ? h("p", { class: "soft" }, `The first ${size(SHOWN)} of ${size(length)}.`) : null,
				h("pre", { class: "output", tabindex: "0", role: "region", "aria-label": `Contents of ${file}` }, ...lines(text)));
			view.scrollIntoView({ block: "nearest" });
		});
	}

	async function download(file, name, pressed) {
		await save(await ask(address("files", file), { signal }), name, pressed);
	}

	function dragover(event) {
		event.preventDefault();
		event.dataTransfer.dropEffect = "copy";
	}

	function drop(event) {
		event.preventDefault();
		upload(event.dataTransfer.files);
	}

	async function upload(chosen) {
		for (const file of chosen) {
			const target = below(file.name);
			const options = { method: "PUT", body: file, raw: true, headers: { "Content-Type": "application/octet-stream" } };
			if (await attempt(() => ask(address("files", target), options))) say(`${file.name} is uploaded.`);
		}
		if (!signal.aborted) await attempt(async () => show(await list(here || ".")));
	}
}

const lines = (text) => text.split("\n").flatMap((line, at) => (at ? [document.createTextNode("\n"), line] : [line]));
