import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { EmbeddedSource } from "./data/embedded-source";
import { ServerSource } from "./data/server-source";

const target = document.getElementById("app");
if (target) mount(App, { target, props: { source: EmbeddedSource.of(document) ?? new ServerSource() } });
