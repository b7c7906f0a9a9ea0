// Server-sent events out of a byte stream: `EventSource` can't send a key. No document here.

/** Collects text; `take` gives the events that are whole, as `{event, id, data}`. */
export class Events {
	constructor() {
		this._lines = [];
		this._rest = "";
	}

	take(text) {
		const found = [];
		const lines = (this._rest + text).split("\n");
		this._rest = lines.pop();
		for (const line of lines) {
			if (line !== "") this._lines.push(line);
			else if (this._lines.length) {
				const event = read(this._lines);
				if (event.data !== undefined) found.push(event);
				this._lines = [];
			}
		}
		return found;
	}
}

function read(lines) {
	const event = { event: "message", id: null };
	for (const line of lines) {
		const colon = line.indexOf(":");
		if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
	}
	return event;
}
