// The journey's stages, gathered for a strip: equal blocks become one node, whatever the family.
import type { Stage } from "../api/types";

export interface JourneyNode {
  readonly label: string;
  readonly output: Stage; // what comes out of it
  readonly blocks: number; // that it stands for; 0: it is no block
  readonly stages: readonly Stage[];
}

const LABELS: Readonly<Record<string, string>> = {
  text: "text",
  ids: "ids",
  embedding: "vectors",
  final: "norm",
  "next scores": "next scores",
  "best id": "best id",
  "next text": "token",
};

export function journeyNodes(stages: readonly Stage[]): JourneyNode[] {
  const groups: Stage[][] = [];
  for (const stage of stages) {
    if (stage.name === "sites") continue; // where the values are kept, no value of its own
    const last = groups.at(-1)?.[0];
    if (last && stage.blocks && last.stack === stage.stack && String(last.blocks) === String(stage.blocks)) {
      groups.at(-1)?.push(stage);
    } else {
      groups.push([stage]);
    }
  }
  const twoStacks = stages.some((stage) => stage.stack !== "");
  return groups.map((group) => toNode(group, twoStacks ? "decoder " : ""));
}

function toNode(stages: readonly Stage[], decoder: string): JourneyNode {
  const first = stages[0] as Stage;
  const [from, to] = (first.blocks ?? [0, -1]) as [number, number];
  const blocks = to - from + 1;
  const stack = first.stack === "encoder." ? "encoder " : first.module ? decoder : "";
  const name = first.name.replace(/^encoder\./, "");
  const label = blocks > 0 ? `${blocks} ${stack}${blocks === 1 ? "block" : "blocks"}` : `${stack}${LABELS[name] ?? name.replaceAll("_", " ")}`;
  return { label, output: stages.at(-1) ?? first, blocks, stages };
}

/** The Python lines that the stages' own lines need before them. */
export function setupLines(stages: readonly Stage[]): string[] {
  return stages.filter((stage) => stage.name === "ids" || stage.name === "sites").map((stage) => stage.python);
}
