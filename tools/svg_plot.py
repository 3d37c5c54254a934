"""Line and bar charts as SVG text, standard library alone. What is drawn depends on the data alone."""

import math
from xml.sax.saxutils import escape

COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22", "#e377c2"]
WIDTH, HEIGHT = 760, 420
LEFT, TOP, RIGHT, BOTTOM = 70, 40, 580, 360  # the frame; the legend is on its right


def number(value):
    """A label: 0.5, 20, 4K."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value // 1024:.0f}K"
    return f"{value:g}"


def text(x, y, what, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(what)}</text>\n'


def line(x1, y1, x2, y2, more):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>\n'


def page(title, body, x_label, y_label):
    middle = (TOP + BOTTOM) / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11" fill="#222">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + text((LEFT + RIGHT) / 2, 22, title, more='font-size="14" font-weight="bold"')
        + body
        + f'<rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}" fill="none" stroke="#888"/>\n'
        + text((LEFT + RIGHT) / 2, BOTTOM + 40, x_label, more='font-size="12"')
        + text(18, middle, y_label, more=f'font-size="12" transform="rotate(-90 18 {middle:.1f})"')
        + "</svg>\n"
    )


def legend(entries):
    out = ""
    for i, (name, colour, dashed) in enumerate(entries):
        y = TOP + 10 + 18 * i
        dash = ' stroke-dasharray="5 3"' if dashed else ""
        out += line(RIGHT + 12, y, RIGHT + 34, y, f'stroke="{colour}" stroke-width="3"{dash}')
        out += text(RIGHT + 40, y + 4, name, "start")
    return out


def log_ticks(low, high):
    """1, 2 and 5 of every decade that are inside."""
    ticks = [m * 10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for m in (1, 2, 5)]
    return [t for t in ticks if low <= t * 1.0001 and t <= high * 1.0001]


def lines(title, x_label, y_label, series, x_ticks):
    """series: (name, [(x, y)], dashed). Both axes logarithmic."""
    series = [(n, [(x, y) for x, y in points if x > 0 and y > 0], d) for n, points, d in series]
    points = [p for _, ps, _ in series for p in ps]
    if not points:
        return page(title, text((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2, "no data"), x_label, y_label)
    x_low, x_high = min(x_ticks) / 1.15, max(x_ticks) * 1.15
    y_low, y_high = min(y for _, y in points) / 1.3, max(y for _, y in points) * 1.3

    def place(value, low, high, start, end):
        return start + (end - start) * math.log(value / low) / math.log(high / low)

    body = ""
    for tick in log_ticks(y_low, y_high):
        y = place(tick, y_low, y_high, BOTTOM, TOP)
        body += line(LEFT, y, RIGHT, y, 'stroke="#ddd"') + text(LEFT - 6, y + 4, number(tick), "end")
    for tick in x_ticks:
        x = place(tick, x_low, x_high, LEFT, RIGHT)
        body += line(x, TOP, x, BOTTOM, 'stroke="#eee"') + text(x, BOTTOM + 16, number(tick))
    entries = []
    for i, (name, ps, dashed) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        entries.append((name, colour, dashed))
        placed = [(place(x, x_low, x_high, LEFT, RIGHT), place(y, y_low, y_high, BOTTOM, TOP)) for x, y in sorted(ps)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        dash = ' stroke-dasharray="5 3"' if dashed else ""
        body += f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>\n'
        body += "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>\n' for x, y in placed)
    return page(title, body + legend(entries), x_label, y_label)


def bars(title, x_label, y_label, groups, series, marks=()):
    """series: (name, [value of each group or None]); marks: (name, y) are lines across."""
    values = [v for _, vs in series for v in vs if v is not None] + [y for _, y in marks]
    if not values:
        return page(title, text((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2, "no data"), x_label, y_label)
    high = max(values) * 1.12
    step = 10.0 ** math.floor(math.log10(high / 4))
    step *= next(m for m in (1, 2, 5, 10) if high / (step * m) <= 8)

    def height(value):
        return BOTTOM - (BOTTOM - TOP) * value / high

    body = ""
    for i in range(int(high / step) + 1):
        y = height(i * step)
        body += line(LEFT, y, RIGHT, y, 'stroke="#ddd"') + text(LEFT - 6, y + 4, f"{i * step:g}", "end")
    room = (RIGHT - LEFT) / len(groups)
    width = room * 0.8 / len(series)
    for g, group in enumerate(groups):
        body += text(LEFT + room * (g + 0.5), BOTTOM + 16, group)
        for s, (_, vs) in enumerate(series):
            if vs[g] is None:
                continue
            x, y = LEFT + room * (g + 0.1) + width * s, height(vs[g])
            body += f'<rect x="{x:.1f}" y="{y:.1f}" width="{width * 0.92:.1f}" height="{BOTTOM - y:.1f}" '
            body += f'fill="{COLOURS[s % len(COLOURS)]}"/>\n'
            body += text(x + width * 0.46, y - 3, f"{vs[g]:.3g}", more='font-size="9"')
    entries = [(name, COLOURS[i % len(COLOURS)], False) for i, (name, _) in enumerate(series)]
    for name, value in marks:
        body += line(LEFT, height(value), RIGHT, height(value), 'stroke="#222" stroke-dasharray="6 4"')
        entries.append((name, "#222", True))
    return page(title, body + legend(entries), x_label, y_label)
