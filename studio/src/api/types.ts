// The server's data by short names. schema.d.ts is generated: `make studio`.
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Recording = Schemas["RecordingJson"];
export type RecordedStep = Schemas["RecordedStep"];
export type RecordedLens = Schemas["RecordedLens"];
export type RecordedToken = Schemas["Token"];
export type Stage = Schemas["Stage"];
export type AttentionMap = Schemas["AttentionMapJson"];
export type AttentionMaps = Schemas["AttentionMapsJson"];
export type Lens = Schemas["LensJson"];
export type Experts = Schemas["ExpertsJson"];
export type Patching = Schemas["PatchingJson"];
export type AlignmentMap = Schemas["AttentionMapJson"];
export type DescribedModel = Schemas["ModelDescriptionJson"];
export type Parameters = Schemas["ParametersJson"];
export type Parameter = Schemas["Parameter"];
export type ModuleNode = Schemas["ModuleNode"];
export type Statistics = Schemas["Statistics"];
export type TokenizedText = Schemas["TokenizedTextJson"];
export type TextToken = Schemas["TextToken"];
export type InsideLevel = Schemas["InsideJson"];
export type RecordRequest = Schemas["RecordRequest"];
export type TrainingCurves = Schemas["TrainingCurvesJson"];
export type Learning = Schemas["LearningJson"];
export type SnapshotReading = Schemas["SnapshotReading"];
export type Tree = Schemas["TreeJson"];
export type TreeNode = Schemas["Node"];
