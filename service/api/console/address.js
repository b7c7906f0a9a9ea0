// What is shown, as the part of the address behind `#`: a link shows the same. It is never sent. No document here.

const MANY = ["state", "metadata"];
const ONE = ["sandbox_id", "kind", "q"];

/** `{view, id, filters}` of an address; `filters` as the lists of the API take them. */
export function parse(hash) {
	const [path, query = ""] = hash.replace(/^#/, "").split("?");
	const [view = "", id = ""] = path.split("/").filter(Boolean).map(decode);
	const given = new URLSearchParams(query);
	const filters = {};
	for (const name of MANY) if (given.has(name)) filters[name] = given.getAll(name).filter(Boolean);
	for (const name of ONE) if (given.get(name)) filters[name] = given.get(name);
	if (view === "jobs" && id) return { view: "job", id, filters };
	if (view === "sandboxes" && id) return { view: "sandbox", id, filters };
	return { view: view === "sandboxes" ? "sandboxes" : "jobs", id: "", filters };
}

function decode(part) {
	try {
		return decodeURIComponent(part);
	} catch {
		return part;
	}
}

/** The address that shows a list with these filters, or one thing. */
export function format(view, id = "", filters = {}) {
	const plural = { job: "jobs", sandbox: "sandboxes" }[view] || view;
	const asked = query(filters);
	return `#/${plural}${id ? `/${encodeURIComponent(id)}` : ""}${asked ? `?${asked}` : ""}`;
}

/** The filters as a query of the API; only what `names` allows. */
export function query(filters, names = [...MANY, ...ONE]) {
	const asked = new URLSearchParams();
	for (const name of names) {
		for (const value of [filters[name] ?? []].flat()) asked.append(name, value);
	}
	return asked.toString();
}
