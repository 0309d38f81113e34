// Two token sequences, and which of their tokens are in both: a longest common subsequence of the ids.

export interface TokenDiff {
  /** Of each token of the first, its partner in the second; null: it has none. */
  readonly first: readonly (number | null)[];
  readonly second: readonly (number | null)[];
  /** Where they part: the number of tokens that both begin with; null: they are the same. */
  readonly parting: number | null;
}

export function diffTokens(first: readonly number[], second: readonly number[]): TokenDiff {
  const shorter = Math.min(first.length, second.length);
  let prefix = 0;
  while (prefix < shorter && first[prefix] === second[prefix]) prefix++;
  let suffix = 0;
  while (suffix < shorter - prefix && first.at(-1 - suffix) === second.at(-1 - suffix)) suffix++;

  const partners: (number | null)[] = first.map((_, at) => (at < prefix ? at : at >= first.length - suffix ? at + second.length - first.length : null));
  for (const [left, right] of commonPairs(first.slice(prefix, first.length - suffix), second.slice(prefix, second.length - suffix))) {
    partners[prefix + left] = prefix + right;
  }
  const reversed: (number | null)[] = second.map(() => null);
  partners.forEach((partner, at) => {
    if (partner !== null) reversed[partner] = at;
  });
  return { first: partners, second: reversed, parting: prefix === first.length && prefix === second.length ? null : prefix };
}

/** The pairs of places of a longest common subsequence, in order. */
function commonPairs(first: readonly number[], second: readonly number[]): [number, number][] {
  const width = second.length + 1;
  const lengths = new Uint32Array((first.length + 1) * width); // of the best subsequence from each pair of places on
  const at = (left: number, right: number): number => lengths[left * width + right] ?? 0;
  for (let left = first.length - 1; left >= 0; left--) {
    for (let right = second.length - 1; right >= 0; right--) {
      lengths[left * width + right] = first[left] === second[right] ? at(left + 1, right + 1) + 1 : Math.max(at(left + 1, right), at(left, right + 1));
    }
  }
  const pairs: [number, number][] = [];
  let left = 0;
  let right = 0;
  while (left < first.length && right < second.length) {
    if (first[left] === second[right]) pairs.push([left++, right++]);
    else if (at(left + 1, right) >= at(left, right + 1)) left++;
    else right++;
  }
  return pairs;
}
