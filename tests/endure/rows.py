"""Runs that yield rows (event, result, whether that is well): printed as they come, and written into a page."""

import argparse
import asyncio
import datetime
import os
import pathlib
import resource
import tempfile


def main(runs, mark, purpose, numbers):
    """The command line of a script with such runs; the exit code. `numbers`: its own options, each a name, a default and what it counts."""
    parser = argparse.ArgumentParser(description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=os.path.abspath)
    parser.add_argument("--only", default=",".join(runs), help=f"of {', '.join(runs)}")
    for name, default, what in numbers:
        parser.add_argument(f"--{name}", type=int, default=default, help=what)
    parser.add_argument("--write", metavar="FILE", help=f"replaces the rows between the `{mark}` marks of this file")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix=f"{mark}-") as options.folder:
        return run(runs, options, mark)


def run(runs, options, mark):
    """Runs those of `options.only`; the exit code. `mark`: the script, and the place of its rows in `options.write`."""
    rows, is_well = [], True

    async def run_all():
        nonlocal is_well
        for name in options.only.split(","):
            async for what, came, well in runs[name](options):
                rows.append((what, came if well else f"**missed**: {came}"))
                print(f"{'ok  ' if well else 'FAIL'} {what}: {came}", flush=True)
                is_well &= well
    asyncio.run(run_all())
    if options.write:
        page = pathlib.Path(options.write)
        head, _, rest = page.read_text().partition(f"<!-- {mark} -->\n")
        _, _, tail = rest.partition(f"<!-- /{mark} -->")
        table = "\n".join(["| event | result |", "|---|---|", *(f"| {what} | {came} |" for what, came in rows)])
        day = datetime.date.today().isoformat()
        page.write_text(f"{head}<!-- {mark} -->\n{day}, release build, `tests/endure/{mark}.py BINARY`:\n\n{table}\n<!-- /{mark} -->{tail}")
    return 0 if is_well else 1
