// Builds the app a second time, as one module with its style inside, and puts it into the template of a saved page. The server's page
// imports the template's address as `virtual:saved-page`; the widget takes its module out of the template.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { build } from "vite";

const MODULE = "virtual:saved-page";
const file = (name) => fileURLToPath(new URL(name, import.meta.url));

/** @returns {import("vite").Plugin} */
export function savedPage() {
  let developing = false;
  return {
    name: "saved-page",
    configResolved(config) {
      developing = config.command === "serve";
    },
    resolveId(id) {
      return id === MODULE ? `\0${MODULE}` : null;
    },
    async load(id) {
      if (id !== `\0${MODULE}`) return null;
      if (developing) return "export default null;";
      const asset = this.emitFile({ type: "asset", name: "saved-page.html", source: filledTemplate(await oneModule()) });
      return `export default import.meta.ROLLUP_FILE_URL_${asset};`;
    },
  };
}

/** The app as one module: dynamic imports inlined, all style in its `__STUDIO_STYLE__`. */
async function oneModule() {
  const results = await build({
    configFile: false,
    root: file("."),
    logLevel: "warn",
    plugins: [svelte()],
    build: {
      write: false,
      target: "es2022",
      cssCodeSplit: false,
      modulePreload: false,
      rollupOptions: {
        input: file("./src/embedded.ts"),
        preserveEntrySignatures: "strict", // its export is what a notebook renders
        output: { inlineDynamicImports: true },
      },
    },
  });
  const [result] = [results].flat();
  if (!result || !("output" in result)) throw new Error("the build gave no files");
  let script = "";
  let style = "";
  for (const part of result.output) {
    if (part.type === "chunk") script += part.code;
    else if (part.fileName.endsWith(".css")) style += String(part.source);
    else throw new Error(`${part.fileName} does not fit into one module`);
  }
  const pieces = script.split("__STUDIO_STYLE__");
  if (pieces.length !== 2) throw new Error("the style has no single place in the module");
  return pieces.join(JSON.stringify(style)).replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
}

/** The template with its script, which the policy allows by its hash. */
function filledTemplate(script) {
  const hash = createHash("sha256").update(script).digest("base64");
  return readFileSync(file("./saved-page.html"), "utf-8").replace("__HASH__", () => hash).replace("__SCRIPT__", () => script);
}
