// A run's short name in a link: the same for the same tokens of the same model.
import type { Recording } from "../api/types";

export function runId(run: Recording): string {
  const identity = JSON.stringify([run.model, run.prompt, run.steps.map((step) => step.token.id)]);
  let hash = 0x811c9dc5; // FNV-1a
  for (let at = 0; at < identity.length; at++) hash = Math.imul(hash ^ identity.charCodeAt(at), 0x01000193);
  return (hash >>> 0).toString(16).padStart(8, "0");
}
