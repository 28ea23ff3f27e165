// Figure 1, drawn by Bokeh: perplexity and its two factors, and the share of words and of the text that moved.

const COLOURS = { light: ["#0072b2", "#c24f00", "#007a5a", "#a8457d", "#5b5bd6"], dark: ["#6db9f0", "#ff9d5c", "#3fd0a4", "#f09bc6", "#b3b3ff"] };
const MARKERS = ["circle", "square", "triangle", "diamond", "star"];
const PERPLEXITIES = [["perplexity", "perplexity", "solid"], ["cluster_perplexity", "of the cluster", [8, 4]], ["in_cluster_perplexity", "inside the cluster", [2, 3]]];
const SHARES = [["share_of_words", "share of words moved", "solid"], ["share_of_mass", "their share of the text", [8, 4]]];

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function figureOf(title, options) {
  const ink = style("--ink"), soft = style("--soft"), line = style("--line");
  const axis = { axis_label_text_color: ink, major_label_text_color: soft, axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: null, axis_label_text_font_style: "normal", axis_label_text_font: style("--font"), major_label_text_font: style("--font") };
  const figure = Bokeh.Plotting.figure({
    sizing_mode: "stretch_width", tools: "pan,box_zoom,wheel_zoom,reset", active_drag: null, active_scroll: null,
    background_fill_color: null, border_fill_color: null, outline_line_color: null, toolbar_location: "above", ...options,
  });
  figure.toolbar.logo = null;
  figure.toolbar.autohide = true;
  for (const one of [figure.xaxis, figure.yaxis]) Object.assign(one, axis);
  figure.xaxis.axis_label = "updates";
  figure.xaxis.formatter = new Bokeh.NumeralTickFormatter({ format: "0,0" });
  Object.assign(figure.title, { text: title, text_color: soft, text_font: style("--font"), text_font_style: "normal", text_font_size: "13px" });
  for (const grid of [figure.xgrid, figure.ygrid]) grid.grid_line_color = line;
  return figure;
}

// 1, 2, 5, 10, 20, …: a log axis may show less than one power of ten.
function logTicks() {
  return Array.from({ length: 24 }, (_, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3));
}

// Draws the curves of all runs; how many there were.
function draw(figure, kinds, steps, colours, digits) {
  const items = [];
  summary.runs.forEach((run, place) => {
    kinds.forEach(([key, label, dash], kind) => {
      const values = run.curves[key];
      if (!values.length) return;
      const x = run.curves[steps].slice(-values.length);
      const name = cut(summary.runs.length > 1 ? `${run.name}: ${label}` : label);
      const data = { x, y: values.map((value) => value ?? NaN), name: x.map(() => name) };
      const source = new Bokeh.ColumnDataSource({ data });
      // One run: a colour for each measure. Several: a colour and a mark for each run; dashes tell the measures apart.
      const color = colours[(summary.runs.length > 1 ? place : kind) % colours.length];
      const renderers = [
        figure.line({ field: "x" }, { field: "y" }, { source, color, line_width: 2, line_dash: dash }),
        figure.scatter({ field: "x" }, { field: "y" }, { source, color, marker: MARKERS[place % MARKERS.length], size: x.length > 60 ? 3 : 6 }),
      ];
      items.push(new Bokeh.LegendItem({ label: { value: name }, renderers }));
    });
  });
  figure.add_tools(new Bokeh.HoverTool({ tooltips: [["", "@name"], ["update", "@x{0,0}"], ["", `@y{${digits}}`]] }));
  figure.add_layout(new Bokeh.Legend({
    items, click_policy: "hide", orientation: "horizontal", location: "left", spacing: 14, glyph_width: 28, padding: 4,
    ncols: Math.max(1, Math.min(items.length, 6, Math.floor($("#charts").clientWidth / 260))), background_fill_alpha: 0,
    border_line_color: null, label_text_color: style("--ink"), label_text_font: style("--font"), label_text_font_size: "12px",
  }), "below");
  return items.length;
}

function curvesTable(caption, kinds, steps) {
  return summary.runs.filter((run) => run.curves[steps].length).map((run) => {
    const held = kinds.filter(([key]) => run.curves[key].length);
    const title = summary.runs.length > 1 ? `${cut(run.name)}: ${caption}` : caption;
    return tableEl(title, ["update", ...held.map(([, label]) => label)], run.curves[steps].map((step, n) =>
      [number(step), ...held.map(([key]) => number(run.curves[key][n], 3))]));
  });
}

let shown = null;

async function drawCharts() {
  const target = $("#charts"), colours = COLOURS[theme()], parts = [];
  const above = figureOf("Perplexity on the development text", { height: 360, y_axis_type: "log" });
  const ticker = new Bokeh.FixedTicker({ ticks: logTicks() });
  above.yaxis.ticker = ticker;
  above.ygrid.ticker = ticker;
  above.yaxis.formatter = new Bokeh.NumeralTickFormatter({ format: "0,0" });
  if (draw(above, PERPLEXITIES, "evaluated", colours, "0,0.0")) parts.push([above, PERPLEXITIES, "evaluated"]);
  const linked = parts.length ? { x_range: above.x_range } : {};
  const below = figureOf("What moved at each reorganization", { height: 250, y_range: [-0.02, 1.02], ...linked });
  below.yaxis.formatter = new Bokeh.NumeralTickFormatter({ format: "0%" });
  if (draw(below, SHARES, "reorganized", colours, "0.0%")) parts.push([below, SHARES, "reorganized"]);
  shown?.remove();
  if (!parts.length) return target.replaceChildren(el("p", { class: "lead" }, "Nothing has been measured yet."));
  const titles = parts.map(([figure]) => figure.title.text).join("; ");
  const place = el("div", { class: "chart", role: "img", "aria-label": `Charts against updates: ${titles}. The same as numbers below.` });
  const numbers = el("details", {}, el("summary", {}, "as numbers"));
  // Filled when it is opened: a long run has thousands of rows.
  numbers.addEventListener("toggle", () => {
    if (numbers.children.length === 1) numbers.append(el("div", { class: "pair" }, parts.flatMap(([figure, ...kinds]) => curvesTable(figure.title.text, ...kinds))));
  });
  target.replaceChildren(place, numbers);
  const column = new Bokeh.Column({ children: parts.map(([figure]) => figure), sizing_mode: "stretch_width" });
  shown = await Bokeh.Plotting.show(column, place);
}
