// charts.js — draws the charts of `tierkv report` with Chart.js. The page has the data as JSON (report_charts.cc says which).
"use strict";
(() => {
  const number = (value) => (value >= 1024 && value % 1024 === 0 ? `${value / 1024}K` : String(+value.toPrecision(3)));
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // "symlog" is linear around 0 and logarithmic further out: points are placed by `to`, and only ticks and tips say what they are.
  const knee = 0.02;
  const places = {
    symlog: { to: (v) => Math.asinh(v / knee), from: (v) => knee * Math.sinh(v) },
    log: { to: (v) => v, from: (v) => v },
    linear: { to: (v) => v, from: (v) => v },
  };

  function axis(description) {
    const place = places[description.scale];
    const options = {
      type: description.scale === "log" ? "logarithmic" : "linear",
      beginAtZero: description.scale === "linear",
      grace: description.scale === "linear" ? 0 : "8%",
      title: { display: true, text: description.label },
      ticks: { callback: (v) => number(place.from(v)), maxRotation: 0, autoSkipPadding: 8 },
      grid: {},
    };
    if (description.low) options.min = description.low;
    if (description.high) options.max = description.high;
    if (description.ticks) {
      options.afterBuildTicks = (scale) => {
        const inside = description.ticks.map((v) => ({ value: place.to(v) })).filter((t) => t.value >= scale.min && t.value <= scale.max);
        if (inside.length > 1) scale.ticks = inside;
      };
    }
    return options;
  }

  // Chart.js has no error bars of its own.
  const errorBars = {
    id: "errorBars",
    beforeDatasetsDraw(chart) {
      const place = places[chart.options.tierkv.y.scale];
      const { ctx, scales } = chart;
      chart.data.datasets.forEach((dataset) => (dataset.data || []).forEach((point) => {
        if (!point || !(point.error > 0)) return;
        const x = scales.x.getPixelForValue(point.x);
        const ends = [-1, 1].map((side) => scales.y.getPixelForValue(place.to(point.value + side * point.error)));
        ctx.save();
        ctx.strokeStyle = dataset.borderColor;
        ctx.lineWidth = 1.5;
        ctx.beginPath();
        ctx.moveTo(x, ends[0]);
        ctx.lineTo(x, ends[1]);
        for (const y of ends) {
          ctx.moveTo(x - 4, y);
          ctx.lineTo(x + 4, y);
        }
        ctx.stroke();
        ctx.restore();
      }));
    },
  };

  function dataset(series, chart) {
    const y = places[chart.y.scale], common = { label: series.name, borderColor: series.colour, backgroundColor: series.colour };
    if (chart.kind === "bars") return { ...common, data: series.points.map(([, value]) => value) };
    return {
      ...common,
      data: series.points.map(([x, value, error]) => ({ x, y: y.to(value), value, error })),
      showLine: chart.kind === "lines",
      borderDash: series.stock ? [6, 4] : [],
      pointStyle: series.stock ? "rect" : "circle",
      pointRadius: 6,
      pointHoverRadius: 8,
    };
  }

  function tip(item) {
    const { value = item.raw, error } = item.raw ?? {};
    return `${item.dataset.label}: ${+Number(value).toPrecision(4)}${error > 0 ? ` ± ${+error.toPrecision(2)}` : ""}`;
  }

  function draw(canvas, chart) {
    const datasets = chart.series.map((series) => dataset(series, chart));
    const y = places[chart.y.scale];
    if (chart.frontier) {
      datasets.push({ label: "", data: chart.frontier.map(([x, value]) => ({ x, y: y.to(value) })), showLine: true, pointRadius: 0,
        pointHitRadius: 0, borderDash: [4, 4], borderWidth: 1, ink: true });
    }
    if (chart.baseline !== undefined) {
      datasets.push({ label: "", type: "line", data: chart.groups.map(() => chart.baseline), pointRadius: 0, pointHitRadius: 0,
        borderDash: [6, 4], borderWidth: 1.5, ink: true });
    }
    const scales = { y: axis(chart.y) };
    if (chart.kind === "scatter") {  // error bars stay inside
      const ends = (side) => chart.series.flatMap((s) => s.points.map(([, value, error]) => y.to(value + side * error)));
      scales.y.suggestedMin = Math.min(...ends(-1));
      scales.y.suggestedMax = Math.max(...ends(1));
      if (chart.y.scale === "log") {
        scales.y.min = scales.y.suggestedMin / 1.2;
        scales.y.max = scales.y.suggestedMax * 1.2;
      }
    }
    scales.x = chart.groups ? { title: { display: true, text: chart.x.label }, ticks: {}, grid: { display: false } } : axis(chart.x);
    return new Chart(canvas, {
      type: chart.kind === "bars" ? "bar" : "scatter",
      data: { labels: chart.groups, datasets },
      plugins: [errorBars],
      options: {
        tierkv: chart,
        animation: false,
        responsive: true,
        maintainAspectRatio: false,
        font: { size: 14 },
        scales,
        plugins: {
          legend: { display: false },  // the page has it, where it can wrap
          tooltip: { filter: (item) => item.dataset.label !== "", callbacks: { title: () => "", label: tip } },
        },
      },
    });
  }

  function paint(chart) {
    const [ink, line] = [style("--ink"), style("--line")];
    for (const scale of Object.values(chart.options.scales)) {
      scale.ticks.color = ink;
      scale.ticks.font = { size: 14 };
      scale.title.color = ink;
      scale.title.font = { size: 14 };
      scale.grid.color = line;
    }
    for (const dataset of chart.data.datasets) if (dataset.ink) dataset.borderColor = ink;
    chart.update();
  }

  const charts = JSON.parse(document.getElementById("charts").textContent);
  const drawn = [...document.querySelectorAll("canvas[data-chart]")].map((canvas) => draw(canvas, charts[canvas.dataset.chart]));
  const repaint = () => drawn.forEach(paint);
  repaint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
})();
