// The server's data by short names. schema.d.ts is generated: `make studio`.
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Recording = Schemas["RecordingJson"];
export type RecordedStep = Schemas["RecordedStep"];
export type RecordedToken = Schemas["Token"];
export type Stage = Schemas["Stage"];
export type InsideLevel = Schemas["InsideJson"];
export type RecordRequest = Schemas["RecordRequest"];
