// What the console's modules promise apart from the document. Each test gets the modules; `equal` fails by throwing.

export const tests = {
	"text: what hides or reorders is made visible"({ text }, equal) {
		equal(text.visible("a\nb\tc\u202ed\x1b[1m\u0000\u{e0041}<b>"), "a⏎b c\\u202ed\\x1b[1m\\x00\\u{e0041}<b>");
		equal(text.visible("שלום, 你好, é, 👩‍👩‍👧"), "שלום, 你好, é, 👩‍👩‍👧");
	},
	"text: durations, as the command line reads them"({ text }, equal) {
		const known = { 90: 90, "90s": 90, "15m": 900, "1h30m": 5400, "2d": 172800, "1H": 3600 };
		for (const [written, seconds] of Object.entries(known)) equal(text.seconds(written), seconds);
		for (const none of ["", "s", "1m1h", "-5", "1.5h", "x"]) equal(text.seconds(none), null);
	},
	"text: sizes, times and pairs"({ text }, equal) {
		equal([999, 1000, 1234567, 2e12].map(text.size), ["999 B", "1 kB", "1.23 MB", "2000 GB"]);
		equal([7, 187, 3787].map(text.duration), ["7 s", "3:07", "1:03:07"]);
		equal(text.pairs(" a=b,c=d=e ,"), ["a=b", "c=d=e"]);
		let said = "";
		try {
			text.pairs("a=b, c");
		} catch (error) {
			said = error.message;
		}
		equal(said, "c is not of the form name=value");
	},
	"address: what was asked for is in it, and comes out of it"({ address }, equal) {
		const filters = { state: ["running", "pending"], metadata: ["a=b&c", "d=#"], sandbox_id: "s/1", kind: "exec", q: "ü ?" };
		equal(address.parse(address.format("jobs", "", filters)), { view: "jobs", id: "", filters });
		equal(address.parse(address.format("job", "cmd_a/b?")), { view: "job", id: "cmd_a/b?", filters: {} });
		equal(address.parse("#/sandboxes/%"), { view: "sandbox", id: "%", filters: {} });
		equal(address.parse("#/nonsense?evil=1&state="), { view: "jobs", id: "", filters: { state: [] } });
		equal(address.query(filters, ["state"]), "state=running&state=pending");
	},
	"events: however they are cut"({ events }, equal) {
		const stream = 'event: state\nid: a\ndata: {"x":1}\n\n: alive\n\nevent: end\nid: b\ndata: {}\n\n';
		const whole = [
			{ event: "state", id: "a", data: '{"x":1}' },
			{ event: "end", id: "b", data: "{}" },
		];
		for (const length of [1, 3, 7, 1000]) {
			const reader = new events.Events();
			const found = [];
			for (let at = 0; at < stream.length; at += length) found.push(...reader.take(stream.slice(at, at + length)));
			equal(found, whole);
		}
	},
	"terminal: colours become classes, and nothing else comes through"({ terminal }, equal) {
		const shown = new terminal.Terminal();
		shown.write("\x1b[1;31mred\x1b[22;39m plain\n\x1b[38;5;196;48;2;0;0;255mx\x1b[0m\x1b]0;title\x07\x1b[2J\x1bc<b>\u202e\x00\n");
		shown.write("\x1b[7mturned\x1b[27m\x1b[4:3mu\n");
		equal(shown.blocks[0].lines, [
			[["red", "b f1"], [" plain", ""]],
			[["x", "f9 g12"], ["<b>\\u202e\\x00", ""]],
			[["turned", "fn gn"], ["u", "u"]],
		]);
	},
	"terminal: a sequence that comes in parts is one"({ terminal }, equal) {
		const text = "a\x1b[32mgreen\x1b[0m\x1b]8;;http://x\x1b\\link\r\nend";
		for (let length = 1; length < text.length; length += 1) {
			const shown = new terminal.Terminal();
			for (let at = 0; at < text.length; at += length) shown.write(text.slice(at, at + length));
			equal(shown.text(), "agreenlink\nend");
			equal(shown.blocks[0].lines[0].map((run) => run[1]), ["", "f2", ""]);
		}
	},
	"terminal: a sequence that never ends is text"({ terminal }, equal) {
		const shown = new terminal.Terminal();
		shown.write("\x1b]" + "x".repeat(5000));
		equal(shown.text().slice(0, 6), "\\x1b]x");
	},
	"terminal: a carriage return writes over, as progress bars do"({ terminal }, equal) {
		const shown = new terminal.Terminal();
		shown.write("10%\r20%\r\x1b[32m3\x1b[0m\r\x1b[Kdone\rD\nab\b\bc\n");
		equal(shown.text(), "Done\ncb\n");
	},
	"terminal: it holds the last of 25 MB, however long its lines are"({ terminal }, equal) {
		for (const [piece, count] of [[("x".repeat(98) + "\n").repeat(660), 400], ["y".repeat(65536), 400], ["\n".repeat(65536), 4]]) {
			const shown = new terminal.Terminal();
			for (let times = 0; times < count; times += 1) shown.write(piece);
			equal([shown.held <= 4_010_000, shown.count <= 20_200, shown.dropped > 0 || shown.held > 3_000_000], [true, true, true]);
		}
	},
	"listing: pages that are read in any order are the list"({ listing }, equal) {
		let seed = 7;
		const chance = (below) => (seed = (seed * 1103515245 + 12345) % 2147483648) % below;
		let all = [];
		let last = 0;
		const add = (count) => {
			for (let at = 0; at < count; at += 1) all.unshift({ id: `j${(last += 1)}`, at: String(last).padStart(6, "0"), busy: chance(9) === 0 });
		};
		const page = (token) => {
			const rest = all.filter((item) => token === null || item.at < token);
			return { items: rest.slice(0, 50), next_page_token: rest.length > 50 ? rest[49].at : null };
		};
		add(1000);
		const list = new listing.Listing({ id: (item) => item.id, when: (item) => item.at, busy: (item) => item.busy });
		const read = (one) => list.merge(one, page(one.token));
		while (list.next) read(list.next);
		equal(list.items, all);
		for (let round = 0; round < 150; round += 1) {
			add(chance(70)); // more than a page at once, now and then
			if (round % 10 === 0) all = all.filter(() => chance(300) > 0);
			read(round % 4 === 3 ? list.pages[chance(list.pages.length)] : list.refresh());
			const ids = list.items.map((item) => item.id);
			equal(new Set(ids).size, ids.length);
			equal([...list.items].sort((one, other) => (one.at < other.at ? 1 : -1)), list.items);
		}
		for (let round = 0; round < 400; round += 1) read(list.next ?? list.pages[round % list.pages.length]);
		equal(list.items, all);
	},
	"listing: what no longer matches leaves, and an empty page with more behind it is passed"({ listing }, equal) {
		const list = new listing.Listing({ id: (item) => item, when: (item) => item, busy: () => true });
		list.merge(list.next, { items: ["9", "8", "7"], next_page_token: "t7" });
		list.merge(list.next, { items: [], next_page_token: "t5" });
		list.merge(list.next, { items: ["4", "3"], next_page_token: null });
		equal([list.items, list.next], [["9", "8", "7", "4", "3"], undefined]);
		list.merge(list.pages[0], { items: ["9", "7"], next_page_token: "t7" });
		equal(list.items, ["9", "7", "4", "3"]);
		list.merge(list.pages[0], { items: [], next_page_token: null });
		equal(list.items, []);
	},
};
