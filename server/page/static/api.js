// The server: models, skills, and one streamed answer at a time. Addresses are relative, for proxies with a prefix.

/** What the server refused, or what broke on the way. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const headers = (key) => ({ "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) });

async function send(path, key, options = {}) {
  let response;
  try {
    response = await fetch(path, { headers: headers(key), ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached.");
  }
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    const body = await response.json();
    message = body.error?.message ?? body.error ?? message;
  } catch {
    // No JSON: the status line has to do.
  }
  throw new ServerError(String(message), response.status);
}

const get = async (path, key) => (await send(path, key)).json();

/** The models that can be asked: [{id, quant, bytes, context, loaded, state}], the default one first. */
export async function models(key) {
  const found = await get("models", key);
  const meta = new Map((found.data ?? []).map((row) => [row.id, row.meta ?? {}]));
  return (found.models ?? []).map((row) => ({
    id: String(row.id),
    quant: row.quant ?? null,
    bytes: meta.get(row.id)?.size ?? 0,
    context: meta.get(row.id)?.n_ctx ?? row.context ?? null,
    loaded: row.loaded === true,
    state: row.state,
  }));
}

/** Skills that conversations may load: [{name, description}]. */
export const skills = async (key) => (await get("v1/skills", key)).skills ?? [];

/** The data of a stream of server-sent events, parsed, until [DONE]. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ServerError("The connection ended before the answer did.");
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
      if (data.trim() === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

/** Ask for an answer; yields the chunks of OpenAI's stream. Abort the signal to stop it. */
export async function* answer(request, key, signal) {
  const extras = { stream: true, stream_options: { include_usage: true }, return_progress: true, timings_per_token: true };
  const body = JSON.stringify({ ...request, ...extras });
  const response = await send("v1/chat/completions", key, { method: "POST", body, signal });
  try {
    for await (const chunk of events(response)) {
      if (chunk.error) throw new ServerError(String(chunk.error.message ?? chunk.error));
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError("The connection to the server was lost.");
  }
}
