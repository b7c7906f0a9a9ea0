// The page: who is signed in, what is shown, and how the connection is.

import { format, parse } from "./address.js";
import { health, json, key } from "./api.js";
import { button, fill, h, template } from "./dom.js";
import { job } from "./job.js";
import { lists } from "./lists.js";
import { sandbox } from "./sandbox.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const account = document.getElementById("account");
let showing = new AbortController();

health.addEventListener("change", ({ trouble }) => {
	connection.className = trouble ? "badge odd" : "badge good";
	fill(connection, trouble ? `reconnecting: ${trouble.message}` : "live");
});

function go(address) {
	if (location.hash === address) show();
	else location.hash = address;
}

function show() {
	showing.abort();
	showing = new AbortController();
	const { view, id, filters } = parse(location.hash);
	const around = { signal: showing.signal, go };
	document.title = "Oncebox";
	for (const link of document.querySelectorAll("header nav a")) {
		link.ariaCurrent = link.dataset.view.startsWith(view) ? "page" : null;
	}
	const page = view === "job" ? job(id, around) : view === "sandbox" ? sandbox(id, around) : lists(view, filters, around);
	fill(main, page);
	main.focus({ preventScroll: true });
	window.scrollTo(0, 0);
}

/** Finds out whether the service asks for a key and takes this tab's. */
async function begin(first = true) {
	try {
		await json("exec-jobs?page_size=1");
		fill(account, key.get() ? button("Sign out", signOut) : h("span", { class: "soft" }, "no key needed"));
		document.querySelector("header nav").hidden = false;
		health.dispatchEvent(Object.assign(new Event("change"), { trouble: null }));
		window.addEventListener("hashchange", show);
		show();
	} catch (problem) {
		if (problem.status === 401) signIn(first && !key.get() ? "" : "The service does not know this key.");
		else fill(main, h("div", { class: "page" }, h("h1", {}, "Oncebox"), h("p", { class: "bad" }, problem.message),
			h("p", {}, button("Try again", () => begin(first)))));
	}
}

function signIn(wrong) {
	key.forget();
	const page = template("sign-in");
	const input = page.querySelector("input");
	page.querySelector("form").addEventListener("submit", (event) => {
		event.preventDefault();
		const given = input.value.trim();
		if (!/^[\x21-\x7e]+$/.test(given)) return signIn("That can't be a key: it has characters that no key has.");
		key.set(given);
		return begin(false);
	});
	fill(page.querySelector(".bad"), wrong);
	fill(main, page);
	input.focus();
}

function signOut() {
	key.forget();
	location.hash = format("jobs");
	location.reload();
}

begin();
