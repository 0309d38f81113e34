// All heads' attention maps, as they come: a byte for each weight.
import type { AttentionMap, AttentionMaps } from "../../api/types";

/** How a weight is shown. */
export interface Display {
  readonly gamma: number; // of the colour scale; 1: in proportion
  readonly hideFirst: boolean; // the first token's column
}

/** One head: what each query gives each key. */
export interface HeadMap {
  readonly queries: readonly string[];
  readonly keys: readonly string[];
  readonly exact: boolean; // or from a byte
  /** Null: masked, or hidden. */
  weight(query: number, key: number): number | null;
}

export class Maps {
  private readonly bytes: Uint8Array;

  constructor(readonly view: AttentionMaps) {
    this.bytes = decodeBase64(view.weights);
  }

  get last(): number {
    return this.view.first + this.view.windows.length - 1;
  }

  holds(layer: number, head: number): boolean {
    return layer >= this.view.first && layer <= this.last && head >= 0 && head < this.view.heads;
  }

  masked(layer: number, query: number, key: number): boolean {
    const { causal, windows, first } = this.view;
    const window = windows[layer - first] ?? Infinity;
    return causal && (key > query || key <= query - window);
  }

  byte(layer: number, head: number, query: number, key: number): number {
    const { first, heads, queries, keys } = this.view;
    return this.bytes[(((layer - first) * heads + head) * queries.length + query) * keys.length + key] ?? 0;
  }

  /** A head, by its exact weights where they are known. */
  head(layer: number, head: number, exact: AttentionMap | null, display: Display): HeadMap {
    const { queries, keys } = this.view;
    const weights = exact?.layer === layer && exact.head === head ? (exact.weights as readonly (readonly number[])[]) : null;
    return {
      queries,
      keys,
      exact: weights !== null,
      weight: (query, key) => {
        if (this.masked(layer, query, key) || (display.hideFirst && key === 0)) return null;
        return weights ? (weights[query]?.[key] ?? 0) : this.byte(layer, head, query, key) / 255;
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
