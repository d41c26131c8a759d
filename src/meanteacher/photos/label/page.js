"use strict";
// Names are inserted as text (textContent, value), never as markup: a file may have any name.
const $ = (id) => document.getElementById(id);
const base = location.pathname.replace(/\/+$/, "") + "/";
const touch = matchMedia("(pointer: coarse)").matches;
let state = null;
let busy = true;
let marked = null;

const say = (sentence) => { $("alert").textContent = sentence; $("alert").hidden = !sentence; };
const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const filtering = () => state.question && !$("filter-box").hidden;

// While a request or an image is loading, no answer is accepted: it could not be about an image that was seen.
async function send(action, content) {
  if (busy) return;
  busy = true;
  await ask(action, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });
}

async function ask(path, options) {
  try {
    const response = await fetch(base + path, options);
    const content = await response.json();
    if (!response.ok) { say(content.error); busy = false; return; }
    say("");
    show(content);
  } catch {
    say("The labelling program does not respond. All answers so far are saved: start it again in the terminal to continue with this image.");
    busy = false;
  }
}

function show(content) {
  state = content;
  const { question, total, labelled, skipped } = state;
  $("progress").textContent = question ? `${question.number} of ${total}` : "Done";
  $("bar").max = total;
  $("bar").value = labelled + skipped;
  $("counts").textContent = `${labelled} labelled` + (skipped ? ` · ${skipped} skipped` : "");
  $("undo").disabled = !state.last;
  $("undo").firstChild.textContent = !state.last ? "Undo" : state.last.label === null ? "Undo the skip" : `Undo “${state.last.label}”`;
  $("skip").hidden = $("ask").hidden = !question;
  $("end").hidden = Boolean(question);
  document.title = `${$("progress").textContent} · Label the next images`;
  $("new").value = $("filter").value = "";
  if (question) showQuestion(question); else showEnd();
}

function showQuestion(question) {
  state.question = question;
  const picture = $("image"), problem = question.problem;
  $("name").textContent = question.name;
  picture.hidden = Boolean(problem);
  $("problem").hidden = !problem;
  $("problem").textContent = problem ? `This image cannot be read: ${problem}. Skip it.` : "";
  $("guess-box").hidden = !question.guess || Boolean(problem);
  $("new").disabled = $("add").disabled = Boolean(problem);
  $("guess").textContent = question.guess;
  const sure = question.confidence === null ? "" : `${question.confidence} sure`;
  $("sure").textContent = sure;
  $("reason").textContent = question.reason;
  $("filter-box").hidden = state.classes.every((each) => each.keys.length);
  $("keys").textContent = filtering()
    ? "The keys for undo and skip work while the box is empty"
    : `One key per class · Backspace or ← undoes · space or → skips${classOf("+") ? "" : " · + another class"}`;
  listClasses();
  document.querySelector(".side").scrollTop = 0;
  restoreFocus();
  $("heard").textContent = [
    `Image ${question.number} of ${state.total}, ${question.name}.`,
    $("problem").textContent,
    question.guess && !problem ? `The model guesses ${question.guess}, ${sure}. ${question.reason}` : "",
  ].join(" ");
  if (problem) { picture.removeAttribute("src"); busy = false; return; }
  picture.onload = () => { busy = false; };
  picture.onerror = () => showQuestion({ ...question, problem: "it could not be loaded" });
  picture.src = `${base}image/${question.position}`;
}

function restoreFocus() {
  // Not on a touch screen: its keyboard would cover the image.
  if (filtering() && !touch) $("filter").focus(); else $("ask").focus({ preventScroll: true });
}

function listClasses() {
  const wanted = $("filter").value.trim().toLowerCase();
  const found = state.classes.filter((each) => each.name.toLowerCase().includes(wanted));
  const guess = state.question.problem ? "" : state.question.guess;
  found.sort((a, b) => rank(a.name, wanted) - rank(b.name, wanted));
  marked = wanted ? (found[0]?.name ?? null) : guess || null;
  $("classes").replaceChildren(...found.map((each) => {
    const item = document.createElement("li"), button = document.createElement("button"), name = document.createElement("span");
    button.type = "button";
    button.disabled = Boolean(state.question.problem);
    name.textContent = each.name;
    if (each.keys.length) {
      const key = document.createElement("kbd");
      key.textContent = each.keys[0];
      button.append(key);
    }
    button.append(name);
    button.onclick = () => answer(each.name);
    if (each.name === marked) item.className = "guessed";
    item.append(button);
    return item;
  }));
}

// While filtering, a name that was typed in full comes first, then names that begin with it. The sort is stable. Two
// names may differ only in case.
const rank = (name, wanted) => {
  if (!wanted) return 0;
  if (name === $("filter").value.trim()) return 1;
  const lower = name.toLowerCase();
  return lower === wanted ? 2 : lower.startsWith(wanted) ? 3 : 4;
};

function showEnd() {
  const { total, labelled, skipped } = state;
  $("end-title").textContent = labelled === total
    ? (total === 1 ? "The image is labelled." : `All ${total} images are labelled.`)
    : `${labelled} of ${plural(total, "image")} labelled, ${skipped} skipped.`;
  $("next").hidden = !state.written;
  $("saved").textContent = `The labels are in ${state.labels_file}.`;
  // A line breaks before an option rather than within it.
  $("command").replaceChildren(...state.command.split(/(?<= )(?=--)/).map((part) => {
    const option = document.createElement("span");
    option.textContent = part;
    return option;
  }));
  $("again").hidden = !skipped;
  $("again").firstChild.textContent = `Show the ${skipped === 1 ? "skipped image" : plural(skipped, "skipped image")} again`;
  $("keys").textContent = "Backspace or ← undoes the last answer";
  $("heard").textContent = $("end-title").textContent;
  $("end").focus({ preventScroll: true });
  busy = false;
}

// The server decides which key selects which class, in upper and lower case.
const classOf = (key) => state.classes.find((each) => each.keys.includes(key));
const answer = (label) => { if (!state.question.problem) send("answer", { question: state.question.position, label }); };
const skip = () => { if (state.question) send("skip", { question: state.question.position }); };
const undo = () => { if (state.last) send("undo", {}); };

function pressed(event) {
  if (!state || event.repeat || event.isComposing) return null;
  const { key, target } = event;
  const undoing = (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && key.toLowerCase() === "z";
  if ((event.ctrlKey || event.metaKey || event.altKey) && !undoing) return null;
  const inFilter = target === $("filter");
  if (target === $("new") || (inFilter && target.value !== "" && key !== "Enter")) return null;
  // No letter or digit undoes or skips: it may be the name of a class.
  if (undoing || key === "Backspace" || key === "ArrowLeft") return undo;
  if (!state.question) return null;
  // Enter and space press the button that has the focus, as everywhere.
  if (key === "Enter") return target.tagName === "BUTTON" ? null : () => { if (marked !== null) answer(marked); };
  if (key === "ArrowRight" || (key === " " && target.tagName !== "BUTTON")) return skip;
  if (inFilter) return null;
  const chosen = classOf(key);
  if (chosen) return () => answer(chosen.name);
  return key === "+" ? () => $("new").focus() : null;
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state?.question) {
    $("new").value = $("filter").value = "";
    listClasses();
    restoreFocus();
    return;
  }
  const action = pressed(event);
  if (action) { event.preventDefault(); action(); }
});
$("accept").onclick = () => answer(state.question.guess);
$("skip").onclick = skip;
$("undo").onclick = undo;
$("again").onclick = () => send("again", {});
$("filter").oninput = listClasses;
$("new-form").onsubmit = (event) => {
  event.preventDefault();
  if ($("new").value.trim()) answer($("new").value);
};
$("copy").onclick = async () => {
  try {
    await navigator.clipboard.writeText(state.command);
    $("copy").firstChild.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren($("command"));
  }
};
ask("state");
