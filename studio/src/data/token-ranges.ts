// Tokens of several tokenizers over one text: which of them cover the same characters.
import type { TextToken } from "../api/types";

/** Characters of a text, from the first to the one behind the last. */
export interface CharacterRange {
  readonly start: number;
  readonly end: number;
}

export function rangeOf(token: TextToken): CharacterRange | null {
  return token.start === null || token.end === null || token.start === token.end ? null : { start: token.start, end: token.end };
}

export function overlaps(token: TextToken, range: CharacterRange | null): boolean {
  const own = rangeOf(token);
  return own !== null && range !== null && own.start < range.end && range.start < own.end;
}

/** Whether a token holds a part of a character only, so that its bytes say more than its text. */
export function isPartial(token: TextToken): boolean {
  return /\\x[0-9a-f]{2}/.test(token.text) && token.bytes.split(" ").some((byte) => Number.parseInt(byte, 16) >= 0x80);
}

/** Characters as the server counts them: by code points. */
export function characters(text: string): string[] {
  return Array.from(text);
}
