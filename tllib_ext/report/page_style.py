"""The style sheet of ``report.html``: one column on a phone, two on a desk, black on white on paper."""

__all__ = ["CSS"]

CSS = """
:root { color-scheme: light; --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --blue: #0072b2; --red: #c2410c; --green: #047857 }
* { box-sizing: border-box }
body { margin: 0; font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; color: var(--ink); background: #f9fafb }
main { max-width: 1180px; margin: 0 auto; padding: 16px }
header { border-bottom: 3px solid var(--blue); margin-bottom: 16px; padding-bottom: 8px }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 8px 0 4px; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 0 0 8px }
h3 { font-size: 1rem; margin: 20px 0 4px; overflow-wrap: anywhere }
p { margin: 4px 0 8px; max-width: 75ch; overflow-wrap: anywhere }
nav { margin-top: 8px; font-size: .9rem; display: flex; flex-wrap: wrap; gap: 4px 14px }
a { color: var(--blue) }
section { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 16px; margin: 0 0 16px }
.soft, figcaption { color: var(--soft); font-size: .875rem }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); gap: 10px; margin: 0 0 16px; padding: 0 }
.tiles li { list-style: none; background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px }
.tiles b { display: block; font-size: 1.65rem; line-height: 1.2; font-variant-numeric: tabular-nums }
.tiles i { font-style: normal; font-weight: 600; color: var(--blue) }
.tiles span { display: block; font-size: .8rem; color: var(--soft); line-height: 1.3 }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 16px; align-items: start }
.plots.full { grid-template-columns: minmax(0, 1fr) }
figure { margin: 0; min-width: 0 }
figure.wide { overflow-x: auto }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem; width: 100% }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-right: 16px }
.bar { display: block; height: 8px; margin-top: 7px; background: #e5e7eb; border-radius: 4px; min-width: 80px; overflow: hidden }
.bar i { display: block; height: 100%; background: var(--blue) }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(124px, 1fr)); gap: 10px; padding: 0; margin: 8px 0 }
.gallery li { list-style: none; border: 1px solid var(--line); border-top: 3px solid var(--line); border-radius: 6px;
  padding: 6px; background: #fff; min-width: 0; break-inside: avoid }
.gallery li.right { border-top-color: var(--green) }
.gallery li.wrong { border-top-color: var(--red) }
.gallery img { display: block; width: 100%; height: 96px; object-fit: contain; background: #f3f4f6 }
.gallery p { margin: 4px 0 0; font-size: .75rem; line-height: 1.3 }
.gallery bdi { display: block; color: var(--soft); white-space: nowrap; overflow: hidden; text-overflow: ellipsis }
.gallery span { display: block; overflow-wrap: anywhere }
.gallery .blank { display: flex; height: 96px; align-items: center; justify-content: center; background: #f3f4f6;
  color: var(--soft); font-size: .75rem }
.gallery.names { grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)) }
pre { background: #f3f4f6; border-radius: 6px; padding: 10px; font-size: .85rem; margin: 6px 0; white-space: pre-wrap;
  overflow-wrap: anywhere }
details { margin-top: 8px } summary { cursor: pointer; color: var(--blue) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; font-size: .875rem; margin: 8px 0 }
dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere; min-width: 0 }
@media (max-width: 640px) {
  main { padding: 8px } section { padding: 10px } h1 { font-size: 1.25rem } .tiles { grid-template-columns: 1fr 1fr }
  dl { grid-template-columns: 1fr } dd { margin-bottom: 4px }
  figure.wide img { max-width: none; width: 680px }
  .numbers thead { display: none }
  .numbers tr { display: grid; grid-template-columns: 1fr auto; border-bottom: 1px solid var(--line) }
  .numbers td { border: 0; overflow-wrap: anywhere; padding: 2px 0 }
  .numbers td:nth-child(3) { grid-column: 1 / -1; color: var(--soft) }
}
@media print {
  body { background: #fff; font-size: 11pt } main { max-width: none; padding: 0 } nav { display: none }
  section { border: 0; padding: 0 } figure, tr, .tiles li { break-inside: avoid } h2, h3 { break-after: avoid }
}
"""
