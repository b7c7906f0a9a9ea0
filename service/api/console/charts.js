// Small charts of the last hour: a bar a minute.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 36;

function shape(tag, attributes, text) {
	const element = document.createElementNS(SVG, tag);
	for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
	if (text) element.textContent = text;
	return element;
}

/** A chart of `minutes` (`{at, ...}` each); `name` is the count that is drawn, `what` its words. */
export function chart(minutes, name, what) {
	const most = Math.max(1, ...minutes.map((minute) => minute[name]));
	const sum = minutes.reduce((total, minute) => total + minute[name], 0);
	const label = `Jobs ${what} a minute, last hour: ${sum} in all, at most ${most} in one minute`;
	const drawn = shape("svg", { viewBox: `0 0 ${minutes.length * 4} ${HEIGHT}`, role: "img", "aria-label": label,
		preserveAspectRatio: "none" });
	minutes.forEach((minute, at) => {
		const height = (minute[name] / most) * (HEIGHT - 1);
		const bar = shape("rect", { x: at * 4, y: HEIGHT - height, width: 3, height });
		bar.append(shape("title", {}, `${new Date(minute.at).toLocaleTimeString()}: ${minute[name]} ${what}`));
		drawn.append(bar);
	});
	const figure = document.createElement("figure");
	const caption = document.createElement("figcaption");
	caption.textContent = `${sum} ${what} in the last hour`;
	figure.append(drawn, caption);
	return figure;
}
