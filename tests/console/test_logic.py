"""The console's modules, apart from the document: `logic.js`, run by the browser that the page is for."""

import json
from pathlib import Path

import pytest

from tests.acceptance.http_rig import Replica
from tests.support.browser import Browser
from tests.support.processes import Spawner

pytestmark = pytest.mark.acceptance

TESTS = Path(__file__).with_name("logic.js")
RUN = """async (source) => {
  const { tests } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const names = ["text", "address", "events", "terminal", "listing"];
  const loaded = await Promise.all(names.map((name) => import(`/console/${name}.js`)));
  const modules = Object.fromEntries(names.map((name, at) => [name, loaded[at]]));
  const equal = (found, wanted) => {
    const sorted = (value) => JSON.stringify(value, (_, held) => held && held.constructor === Object
      ? Object.fromEntries(Object.entries(held).sort()) : held);
    const [is, should] = [sorted(found), sorted(wanted)];
    if (is !== should) throw new Error(`${is?.slice(0, 500)} is not ${should?.slice(0, 500)}`);
  };
  const results = {};
  for (const [name, test] of Object.entries(tests)) {
    try { test(modules, equal); results[name] = "ok"; } catch (error) { results[name] = String(error.stack); }
  }
  return results;
}"""


async def test_the_modules_keep_what_they_promise(spawn: Spawner, browser: Browser) -> None:
    await browser.open(f"{Replica(spawn).url}/healthz")
    results = await browser.page.evaluate(RUN, TESTS.read_text())
    assert len(results) > 10
    assert not {name: said for name, said in results.items() if said != "ok"}, json.dumps(results, indent=1)
