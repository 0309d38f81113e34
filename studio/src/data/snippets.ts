// A run as something to paste: each writes the same text again, from the prompt as the model read it.
import type { Recording } from "../api/types";
import { escapeInvisible } from "./format";

export type SnippetKind = "Python" | "command" | "curl";
export const SNIPPET_KINDS: readonly SnippetKind[] = ["Python", "command", "curl"];

type Setting = readonly [name: string, value: unknown];

const MODELS_OWN: ReadonlySet<string> = new Set(["bos_token_id", "eos_token_id", "pad_token_id"]);
const OPTIONS: ReadonlySet<string> = new Set(["max_new_tokens", "temperature", "top_k", "top_p", "seed"]); // of the command; others go by -o
const REQUEST_NAMES: Readonly<Record<string, string>> = { max_new_tokens: "max_tokens", stop_strings: "stop" };

/** `server`: the address that curl asks. */
export function snippet(kind: SnippetKind, run: Recording, server: string): string {
  const settings = Object.entries(run.settings).filter(([name]) => !MODELS_OWN.has(name));
  switch (kind) {
    case "Python":
      return pythonLines(run, settings);
    case "command":
      return commandLine(run, settings);
    case "curl":
      return curlLine(run, settings, server);
  }
}

function pythonLines(run: Recording, settings: readonly Setting[]): string {
  const keywords = settings.map(([name, value]) => `${name}=${pythonLiteral(value)}`);
  const call = [pythonLiteral(run.prompt), "raw=True", ...keywords].join(", ");
  return `import glassformer\n\nmodel = glassformer.load(${pythonLiteral(run.model)})\nrun = model.watch(${call})\nprint(run.text)`;
}

function commandLine(run: Recording, settings: readonly Setting[]): string {
  const options = settings.flatMap(([name, value]) => {
    if (name === "do_sample") return [value ? "--sample" : "--greedy"];
    if (name === "stop_strings") return [value].flat().map((stop) => `--stop ${shellQuoted(String(stop))}`);
    if (OPTIONS.has(name)) return [`--${name.replaceAll("_", "-")} ${String(value)}`];
    return [`-o ${shellQuoted(`${name}=${json(value)}`)}`];
  });
  return ["glass run", `-m ${shellQuoted(run.model)}`, "--raw", ...options, "--", shellQuoted(run.prompt)].join(" ");
}

function curlLine(run: Recording, settings: readonly Setting[], server: string): string {
  const fields = Object.fromEntries(settings.map(([name, value]) => [REQUEST_NAMES[name] ?? name, value]));
  return curlRequest(server, "run", { model: run.model, prompt: run.prompt, raw: true, ...fields });
}

/** What asks a server for a view by its name. */
export function curlRequest(server: string, view: string, body: Readonly<Record<string, unknown>>): string {
  return `curl ${shellQuoted(`${server}glass/${view}`)} -H 'Content-Type: application/json' -d ${shellQuoted(json(body))}`;
}

export function pythonString(text: string): string {
  return json(text); // JSON's strings and numbers are Python's too
}

function pythonLiteral(value: unknown): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return pythonString(value);
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
  if (typeof value === "object") {
    const items = Object.entries(value).map(([name, item]) => `${pythonString(name)}: ${pythonLiteral(item)}`);
    return `{${items.join(", ")}}`;
  }
  return json(value);
}

/** JSON in which nothing is invisible, so that what is pasted is what was seen. */
function json(value: unknown): string {
  return escapeInvisible(JSON.stringify(value));
}

function shellQuoted(text: string): string {
  if (/^[\w./:-]+$/.test(text)) return text;
  if (escapeInvisible(text, "\n\t") === text) return `'${text.replaceAll("'", `'\\''`)}'`;
  return `$'${escapeInvisible(text.replaceAll(/[\\']/g, "\\$&"), "\n\t")}'`; // bash, zsh and ksh read \u202e in it
}
