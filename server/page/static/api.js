// The server: models, skills, and one streamed answer at a time.

const headers = (key) => ({ "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) });

async function problem(response) {
  try {
    const body = await response.json();
    return body.error?.message ?? body.error ?? `${response.status} ${response.statusText}`;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

async function get(path, key) {
  const response = await fetch(path, { headers: headers(key) });
  if (!response.ok) throw new Error(await problem(response));
  return response.json();
}

/** Ids of the models that can be asked. */
export const models = async (key) => (await get("/v1/models", key)).data.map((model) => model.id);

/** Skills that conversations may load: [{name, description}]. */
export const skills = async (key) => (await get("/v1/skills", key)).skills ?? [];

/** The events of a server-sent stream as parsed objects, until [DONE]. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

/** Ask for an answer; yields the chunks. Abort the signal to stop it. */
export async function* answer(request, key, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(key),
    body: JSON.stringify({
      ...request, stream: true, stream_options: { include_usage: true }, return_progress: true, timings_per_token: true,
    }),
    signal,
  });
  if (!response.ok) throw new Error(await problem(response));
  for await (const chunk of events(response)) {
    if (chunk.error) throw new Error(chunk.error.message ?? String(chunk.error));
    yield chunk;
  }
}
