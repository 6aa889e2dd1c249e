// Python in a thread of its own: loads Pyodide and Stoker from beside this file, then answers questions one at a time.
import { loadPyodide } from "./pyodide.mjs";

const here = new URL("./", import.meta.url).href;

// Pyodide asks for its WebAssembly by name; it is stored compressed, because not every server compresses it.
const fetchStored = self.fetch;
self.fetch = async (resource, options) => {
  if (!String(resource).endsWith(".wasm")) return fetchStored(resource, options);
  const packed = await fetchStored(`${resource}.packed`, options);
  const stream = packed.body.pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream, { headers: { "Content-Type": "application/wasm" } });
};

async function start() {
  const archive = fetch(`${here}stoker.zip`).then((response) => response.arrayBuffer());
  const python = await loadPyodide({ indexURL: here, packageBaseUrl: here });
  postMessage({ state: "python" });
  python.unpackArchive(await archive, "zip", { extractDir: "/stoker" });
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
  const ask = await ready;
  try {
    postMessage({ number, answer: ask(JSON.stringify(question), language) });
  } catch (error) {
    postMessage({ number, failed: String(error) });
  }
};
