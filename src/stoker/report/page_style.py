"""How a run's page looks: light and dark, phone and desktop, letters of the reader's own system."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2129; --faint: #5f6773; --rule: #e2e5ea; --sheet: #f6f7f9;
  --c0: #2466c9; --c1: #c2410c; --good: #17702f; --bad: #b3151f; --warm: #8a5a00; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171c; --ink: #e6e9ee; --faint: #9aa3af; --rule: #2b313a; --sheet: #1c2027;
    --c0: #7db0ff; --c1: #ff9d66; --good: #6fd58a; --bad: #ff8a8a; --warm: #f0bd5a; } }
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, -apple-system, "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", sans-serif;
  max-width: 68rem; margin: 0 auto; padding: 1.2rem 1rem 3rem; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; padding-bottom: .3rem; border-bottom: 1px solid var(--rule); }
p { margin: .4rem 0; overflow-wrap: anywhere; }
.note, small, .under, caption { color: var(--faint); font-size: .85rem; }
.state { font-weight: 600; } .state.done, .state.running { color: var(--good); }
.state.failed { color: var(--bad); } .state.stopped, .state.interrupted, .state.unreachable { color: var(--warm); }
.done-part { height: 6px; border-radius: 3px; background: var(--rule); margin: .8rem 0; overflow: hidden; }
.done-part span { display: block; height: 100%; background: var(--c0); }
.problem { border-left: 4px solid var(--bad); background: var(--sheet); padding: .6rem .9rem; margin: 1rem 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1rem 0 0; }
.tiles div { background: var(--sheet); border-radius: 6px; padding: .6rem .8rem; }
.tiles dt { color: var(--faint); font-size: .85rem; }
.tiles dd { margin: 0; font-size: 1.2rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles small { display: block; font-weight: 400; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.2rem 1.6rem; }
.chart { margin: 0; } .charts .chart:first-child { grid-column: 1 / -1; }
.charts .chart:first-child .plot { height: 17rem; }
.chart figcaption { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .9rem; margin-bottom: .5rem; }
.key::before { content: ""; display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }
.key.s0::before { background: var(--c0); } .key.s1::before { background: var(--c1); }
.plot { position: relative; height: 9rem; margin: 0 1.6rem 1.4rem calc(var(--digits) * .6em + .8rem); }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot path { fill: none; vector-effect: non-scaling-stroke; }
.grid { stroke: var(--rule); } .mark { stroke: var(--faint); stroke-dasharray: 3 3; }
.line { stroke-width: 1.8; stroke-linejoin: round; } .dots { stroke-width: 1; stroke-dasharray: 2 3; }
.dot { stroke-width: 8; stroke-linecap: round; }
.line.s0, .dots.s0, .dot.s0 { stroke: var(--c0); } .line.s1, .dots.s1, .dot.s1 { stroke: var(--c1); }
.plot .band { stroke: none; opacity: .16; } .band.s0 { fill: var(--c0); } .band.s1 { fill: var(--c1); }
.rows span, .columns span { position: absolute; font-size: .78rem; line-height: 1; color: var(--faint);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.rows span { right: calc(100% + .5rem); transform: translateY(50%); }
.columns span { top: calc(100% + .5rem); transform: translateX(-50%); }
.under { text-align: right; margin-right: 1.6rem; }
table { border-collapse: collapse; width: 100%; margin: .4rem 0; font-variant-numeric: tabular-nums; }
td, th { border-bottom: 1px solid var(--rule); padding: .35rem .9rem .35rem 0; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
th { color: var(--faint); font-weight: 500; font-size: .85rem; }
.log td:first-child, .facts td:first-child { white-space: nowrap; width: 1%; }
.plan td, .plan th { overflow-wrap: break-word; }
.bars { max-width: 34rem; } .bars caption { text-align: left; } .bars td, .bars th { border: 0; padding-block: .1rem; }
.bars th { white-space: nowrap; width: 7rem; } .bars td:last-child { width: 6rem; text-align: right; }
.bars .bar { display: block; height: .8em; min-width: 2px; background: var(--c0); border-radius: 2px;
  margin-top: .35em; }
section .survey h3 { font-size: .95rem; margin: 1.2rem 0 .2rem; }
section .survey td, section .survey th { border-color: var(--rule); }
section .survey text { fill: var(--faint); } section .survey .bar { fill: var(--c0); }
section .survey .asked { stroke: var(--bad); }
section .survey .good { color: var(--good); } section .survey .look { color: var(--bad); }
dl.sample, dl.commands { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; }
dl.sample { background: var(--sheet); border-radius: 6px; padding: .7rem .9rem; margin: .7rem 0; }
dl.sample dt, dl.commands dt { color: var(--faint); }
dl.sample dd { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
dl.commands dd { margin: 0; }
code, pre { font: .9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
code { background: var(--sheet); padding: .1em .35em; border-radius: 4px; }
pre { white-space: pre-wrap; background: var(--sheet); padding: .8rem; border-radius: 6px; }
ul { margin: .4rem 0; padding-left: 1.2rem; } li { overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--faint); }
@media (max-width: 34rem) { section .survey text { font-size: 15px; }
  dl.commands { grid-template-columns: 1fr; } dl.commands dd { margin-bottom: .5rem; } }
@media print { body { max-width: none; } section { break-inside: avoid; } }
"""
