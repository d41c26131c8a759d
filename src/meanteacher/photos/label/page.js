"use strict";
// Names are inserted as text (textContent, value), never as markup: a file may have any name.
const $ = (id) => document.getElementById(id);
const base = location.pathname.replace(/\/+$/, "") + "/";
const touch = matchMedia("(pointer: coarse)").matches;
// Each window has questions of its own, so that no two ask about the same photo.
const tab = crypto.randomUUID();
let state = null;
let busy = true;
let marked = null;
let finished = false;

const say = (sentence) => { $("alert").textContent = sentence; $("alert").hidden = !sentence; };
const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const filtering = () => asking() && !$("filter-box").hidden;

// While a request or an image is loading, no answer is accepted: it could not be about an image that was seen.
async function send(action, content = {}) {
  if (busy) return;
  busy = true;
  await ask(action, content);
}

const post = (action, content = {}, options = {}) => fetch(base + action, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ window: tab, ...content }), ...options,
});

async function ask(action, content) {
  try {
    const response = await post(action, content);
    const found = await response.json();
    if (!response.ok) { say(found.error); busy = false; return; }
    say("");
    show(found);
  } catch {
    say("The labelling program does not respond. All answers so far are saved: start it again in the terminal to continue with this image.");
    busy = false;
  }
}

function show(content) {
  state = content;
  const { question, labelled, skipped, goal, review } = state;
  const asking = Boolean(question) && !finished;
  $("progress").textContent = review ? `${labelled} of ${goal} reviewed` : `${labelled} labelled`;
  $("bar").max = goal;
  $("bar").value = Math.min(goal, labelled);
  $("counts").textContent = [
    skipped ? `${skipped} skipped` : "",
    !review && labelled >= goal ? "Enough for a fit: finish, or go on" : "",
  ].filter(Boolean).join(" · ");
  $("undo").disabled = !state.last;
  $("undo").firstChild.textContent = !state.last ? "Undo" : state.last.label === null ? "Undo the skip" : `Undo “${state.last.label}”`;
  $("skip").hidden = $("finish").hidden = $("ask").hidden = !asking;
  $("end").hidden = asking;
  document.title = `${$("progress").textContent} · Label photos`;
  $("new").value = $("filter").value = "";
  if (asking) showQuestion(question); else showEnd();
}

function showQuestion(question) {
  state.question = question;
  const picture = $("image"), problem = question.problem, given = question.given;
  $("name").textContent = question.name;
  picture.hidden = Boolean(problem);
  $("problem").hidden = !problem;
  $("problem").textContent = problem ? `This image cannot be read: ${problem}. Skip it.` : "";
  $("guess-box").hidden = !question.guess || Boolean(problem);
  $("new").disabled = $("add").disabled = $("none").disabled = Boolean(problem);
  $("new-label").textContent = state.classes.length ? "Another class" : "Name the class of this photo";
  $("given").textContent = given ? `Labelled ${given}. To a model without this label it looks like` : "The model’s guess";
  // In a review the label is as likely to be right as the guess, so neither stands out.
  $("accept").firstChild.textContent = given ? `Change to ${question.guess}` : "Yes, that is right";
  $("accept").classList.toggle("main-action", !given);
  $("keep").firstChild.textContent = `Keep ${given}`;
  $("keep").hidden = !given;
  $("skip").hidden = Boolean(given) && !problem;
  $("guess").textContent = question.guess;
  const sure = question.confidence === null ? "" : `${question.confidence} sure`;
  $("sure").textContent = sure;
  $("reason").textContent = question.reason;
  $("filter-box").hidden = state.classes.every((each) => each.keys.length);
  $("keys").textContent = filtering()
    ? "The keys for undo and skip work while the box is empty"
    : `One key per class · Backspace or ← undoes · space or → ${given ? "keeps the label" : "skips"}${classOf("+") ? "" : " · + another class"}`;
  listClasses();
  document.querySelector(".side").scrollTop = 0;
  restoreFocus();
  $("heard").textContent = [
    `Photo ${question.name}.`,
    $("problem").textContent,
    question.guess && !problem ? `${$("given").textContent}: ${question.guess}, ${sure}. ${question.reason}` : "",
  ].join(" ");
  if (problem) { picture.removeAttribute("src"); busy = false; return; }
  picture.onload = () => { busy = false; };
  picture.onerror = () => showQuestion({ ...question, problem: "it could not be loaded" });
  picture.src = `${base}image/${question.index}`;
}

function restoreFocus() {
  // Not on a touch screen: its keyboard would cover the image.
  const typing = filtering() ? "filter" : state.classes.length ? "ask" : "new";
  $(touch ? "ask" : typing).focus({ preventScroll: true });
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
    const n = document.createElement("span");
    n.className = "n";
    n.textContent = each.n;
    n.title = plural(each.n, "label");
    button.append(name, n);
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
  const { question, labelled, skipped, elsewhere, review } = state;
  const what = review ? "reviewed" : "labelled";
  $("end-title").textContent = question ? `${plural(labelled, "photo")} ${what}.`
    : elsewhere ? "The last photos are open in another window."
    : skipped ? `Every photo is ${what}, except ${plural(skipped, "skipped one")}.`
    : `Every photo is ${what}.`;
  $("next").hidden = !state.written;
  $("saved").textContent = `The labels are in ${state.labels_file}.`;
  // A line breaks before an option rather than within it.
  $("command").replaceChildren(...state.command.split(/(?<= )(?=--)/).map((part) => {
    const option = document.createElement("span");
    option.textContent = part;
    return option;
  }));
  $("go-on").hidden = !question;
  $("again").hidden = !skipped;
  $("again").firstChild.textContent = `Show the ${skipped === 1 ? "skipped image" : plural(skipped, "skipped image")} again`;
  $("keys").textContent = "Backspace or ← undoes the last answer";
  $("heard").textContent = $("end-title").textContent;
  $("end").focus({ preventScroll: true });
  busy = false;
}

// The server decides which key selects which class, in upper and lower case.
const classOf = (key) => state.classes.find((each) => each.keys.includes(key));
const answer = (label) => { if (!state.question.problem) send("answer", { question: state.question.index, label }); };
const skip = () => {
  if (!asking()) return;
  if (state.question.given && !state.question.problem) answer(state.question.given);
  else send("skip", { question: state.question.index });
};
const undo = () => { if (state.last) { finished = false; send("undo"); } };
const asking = () => state?.question && !finished;

function refuse(key) {
  const alike = state.classes.filter((each) => each.name.toLowerCase().startsWith(key.toLowerCase()));
  const keys = alike.map((each) => `${each.keys[0]} for ${each.name}`);
  say(`“${key}” is not the key of a class: nothing was saved.` + (keys.length ? ` Press ${keys.join(", ")}.` : ""));
}

function pressed(event) {
  if (!state || event.repeat || event.isComposing) return null;
  const { key, target } = event;
  const undoing = (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && key.toLowerCase() === "z";
  if ((event.ctrlKey || event.metaKey || event.altKey) && !undoing) return null;
  const inFilter = target === $("filter");
  if (target === $("new") || (inFilter && target.value !== "" && key !== "Enter")) return null;
  // No letter or digit undoes or skips: it may be the name of a class.
  if (undoing || key === "Backspace" || key === "ArrowLeft") return undo;
  if (!asking()) return null;
  // Enter and space press the button that has the focus, as everywhere.
  if (key === "Enter") return target.tagName === "BUTTON" ? null : () => {
    if (marked !== null) answer(marked);
    else say(inFilter && target.value ? `No class contains “${target.value}”. Add it below.` : "There is no guess to accept: choose a class.");
  };
  if (key === "ArrowRight" || (key === " " && target.tagName !== "BUTTON")) return skip;
  if (inFilter) return null;
  const chosen = classOf(key);
  if (chosen) return () => answer(chosen.name);
  if (key === "+") return () => $("new").focus();
  if (key === "-") return () => answer(state.none_of_these);
  return key.length === 1 && key !== " " ? () => refuse(key) : null;
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && asking()) {
    $("new").value = $("filter").value = "";
    listClasses();
    restoreFocus();
    return;
  }
  const action = pressed(event);
  if (action) { event.preventDefault(); action(); }
});
$("accept").onclick = () => answer(state.question.guess);
$("skip").onclick = $("keep").onclick = skip;
$("undo").onclick = undo;
$("again").onclick = () => { finished = false; send("again"); };
$("none").onclick = () => answer(state.none_of_these);
$("finish").onclick = () => { finished = true; show(state); };
$("go-on").onclick = () => { finished = false; show(state); };
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
addEventListener("pagehide", () => { post("close", {}, { keepalive: true }).catch(() => {}); });
ask("state");
