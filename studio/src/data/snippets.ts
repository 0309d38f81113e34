// A run as something to paste: each writes the same text again.
import type { Recording } from "../api/types";

export type SnippetKind = "Python" | "command" | "curl";

const SETTINGS = ["do_sample", "temperature", "top_k", "top_p", "seed", "max_new_tokens"] as const;

export function snippet(kind: SnippetKind, run: Recording, address: string): string {
  const settings = SETTINGS.flatMap((name) => {
    const value = run.settings[name];
    return typeof value === "number" || typeof value === "boolean" ? [[name, value] as const] : [];
  });
  switch (kind) {
    case "Python": {
      const keywords = settings.map(([name, value]) => `${name}=${value === true ? "True" : value === false ? "False" : value}`);
      const call = ["raw=True", ...keywords].join(", ");
      return `import glassformer\n\nrun = glassformer.load(${JSON.stringify(run.model)}).watch(${pythonString(run.prompt)}, ${call})\nprint(run.text)`;
    }
    case "command": {
      const options = settings.flatMap(([name, value]) => (name === "do_sample" ? [value ? "--sample" : "--greedy"] : [`--${name.replaceAll("_", "-")} ${value}`]));
      return `glass run -m ${shellQuoted(run.model)} --raw ${options.join(" ")} -- ${shellQuoted(run.prompt)}`;
    }
    case "curl": {
      const fields = Object.fromEntries(settings.filter(([name]) => name !== "do_sample" && name !== "max_new_tokens"));
      const limit = run.settings["max_new_tokens"];
      const body = { model: run.model, prompt: run.prompt, raw: true, max_tokens: limit, ...fields };
      return `curl ${address}glass/run -H 'Content-Type: application/json' -d ${shellQuoted(JSON.stringify(body))}`;
    }
  }
}

/** JSON's escapes are Python's too, but for pairs of surrogates, which JSON.stringify writes only where they are broken. */
export function pythonString(text: string): string {
  return JSON.stringify(text);
}

function shellQuoted(text: string): string {
  return /^[\w./:-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
