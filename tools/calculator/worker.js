// Python in a thread of its own: loads Pyodide and Stoker from beside this file, then answers questions one at a time.
import { loadPyodide } from "./pyodide.mjs";

const here = new URL("./", import.meta.url).href;
const WASM = `${here}pyodide.asm.wasm`;

async function stored(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address}: ${response.status}`);
  return response;
}

/**
 * Pyodide, from a WebAssembly that is stored compressed, because not every server compresses it. Pyodide asks for it by
 * name, takes no stream of ours, and waits forever if it does not come: so it is asked for here, and while Pyodide starts,
 * this worker's `fetch` hands it over. This goes when Pyodide takes a compiled module.
 */
async function loadStored() {
  const packed = await stored(`${WASM}.packed`);
  const fetchAsIs = self.fetch;
  self.fetch = (resource, options) => {
    if (String(resource) !== WASM) return fetchAsIs(resource, options);
    const stream = packed.body.pipeThrough(new DecompressionStream("gzip"));
    return Promise.resolve(new Response(stream, { headers: { "Content-Type": "application/wasm" } }));
  };
  try {
    return await loadPyodide({ indexURL: here, packageBaseUrl: here });
  } finally {
    self.fetch = fetchAsIs;
  }
}

async function start() {
  const archive = stored(`${here}stoker.zip`).then((response) => response.arrayBuffer());
  const [python, files] = await Promise.all([loadStored(), archive]);
  postMessage({ state: "python" });
  python.unpackArchive(files, "zip", { extractDir: "/stoker" });
  return python.runPython(`
import json, os, sys
sys.path.insert(0, "/stoker")
sys.dont_write_bytecode = True
from stoker.api import calculator

def ask(text, language):
    os.environ["STOKER_LANG"] = language
    return json.dumps(calculator.answer(json.loads(text)), ensure_ascii=False)

ask`);
}

const ready = start();
ready.then(
  () => postMessage({ state: "ready" }),
  (error) => postMessage({ state: "failed", error: String(error) }),
);

onmessage = async ({ data: { number, question, language } }) => {
  const ask = await ready.catch(() => null);
  if (!ask) return; // the page has been told why
  try {
    postMessage({ number, answer: ask(JSON.stringify(question), language) });
  } catch (error) {
    postMessage({ number, failed: String(error) });
  }
};
