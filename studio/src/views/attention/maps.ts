// All heads' attention maps, as they come: a byte for each weight.
import type { AttentionMap, AttentionMaps } from "../../api/types";

/** How a weight is shown. */
export interface Display {
  readonly gamma: number; // of the colour scale; 1: in proportion
  readonly hideFirst: boolean; // the first token's column
}

const SINK = "(sink)"; // the last column of a head that has one: a learned score that stands for no token

/** One head: what each query gives each key, and its sink. */
export interface HeadMap {
  readonly queries: readonly string[];
  readonly keys: readonly string[];
  readonly exact: boolean; // or from a byte
  /** Null: masked, or hidden. */
  weight(query: number, key: number): number | null;
}

export class Maps {
  readonly columns: readonly string[]; // the keys, and the sink where there is one
  private readonly bytes: Uint8Array;
  private readonly sinks: Uint8Array;

  constructor(readonly view: AttentionMaps) {
    this.bytes = decodeBase64(view.weights);
    this.sinks = decodeBase64(view.sinks ?? "");
    this.columns = this.sinks.length ? [...view.keys, SINK] : view.keys;
  }

  get last(): number {
    return this.view.first + this.view.windows.length - 1;
  }

  holds(layer: number, head: number): boolean {
    return layer >= this.view.first && layer <= this.last && head >= 0 && head < this.view.heads;
  }

  masked(layer: number, query: number, key: number): boolean {
    const { causal, windows, first, keys } = this.view;
    if (key === keys.length) return false;
    const window = windows[layer - first] ?? Infinity;
    return causal && (key > query || key <= query - window);
  }

  byte(layer: number, head: number, query: number, key: number): number {
    const { first, heads, queries, keys } = this.view;
    const row = ((layer - first) * heads + head) * queries.length + query;
    return (key === keys.length ? this.sinks[row] : this.bytes[row * keys.length + key]) ?? 0;
  }

  /** A head, by its exact weights where they are known. */
  head(layer: number, head: number, exact: AttentionMap | null, display: Display): HeadMap {
    const { queries, keys } = this.view;
    const known = exact?.layer === layer && exact.head === head ? exact : null;
    const weights = (known?.weights ?? []) as readonly (readonly number[])[];
    const sink = (known?.sink ?? []) as readonly number[];
    return {
      queries,
      keys: this.columns,
      exact: known !== null,
      weight: (query, key) => {
        if (this.masked(layer, query, key) || (display.hideFirst && key === 0)) return null;
        if (!known) return this.byte(layer, head, query, key) / 255;
        return (key === keys.length ? sink[query] : weights[query]?.[key]) ?? 0;
      },
    };
  }

  /** The head to open with: whose tokens attend most to others than themselves and the first one. */
  mostTelling(): { layer: number; head: number } {
    const { first, heads, queries, keys, kind } = this.view;
    const self = kind !== "cross";
    let best = { layer: first, head: 0, total: -1 };
    for (let layer = first; layer <= this.last; layer++) {
      for (let head = 0; head < heads; head++) {
        let total = 0;
        queries.forEach((_, query) => {
          let most = 0;
          for (let key = self ? 1 : 0; key < keys.length; key++) {
            if (!self || key !== query) most = Math.max(most, this.byte(layer, head, query, key));
          }
          total += most;
        });
        if (total > best.total) best = { layer, head, total };
      }
    }
    return { layer: best.layer, head: best.head };
  }
}

function decodeBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place);
  return bytes;
}
