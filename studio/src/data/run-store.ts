// Runs that were opened from a file, kept for as long as the window is open, so that its address leads to them again.
import type { Recording } from "../api/types";
import { runId } from "./run-id";
import { asRecording } from "./source";

const PREFIX = "glassformer-run-";

/** Returns the run's id, by which it is found again unless the browser has no room for it. */
export function keepRun(run: Recording): string {
  const id = runId(run);
  try {
    sessionStorage.setItem(PREFIX + id, JSON.stringify(run));
  } catch {
    // a strict browser, or a run that is too large: opening the address says that the run is not here
  }
  return id;
}

export function keptRun(id: string): Recording | null {
  try {
    const text = sessionStorage.getItem(PREFIX + id);
    return text === null ? null : asRecording(JSON.parse(text));
  } catch {
    return null;
  }
}
