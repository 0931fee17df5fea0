// What the fake server says. In: the last message of a request. Out: reasoning, text and how they come.
//
// A word of the question chooses the answer, so a test reads like a conversation.

const STORY = `Once there was a wise frog who wanted a bicycle. He asked his friend, a little bird, to help him.

The bird flew to a nearby shop and came back with a shiny red bell. "Every bicycle begins with a bell," said the bird.

The frog rang it all the way home, and by the evening the whole pond had come to see what was so *wonderful*.`;

const CODE = `Here is a small function that compares a word with its reverse. It ignores case and everything that is not a letter:

\`\`\`python
def is_palindrome(word: str) -> bool:
    """True if the word reads the same both ways."""
    letters = [c.lower() for c in word if c.isalnum()]
    return letters == letters[::-1]


for word in ["Level", "Glimmer", "A man, a plan, a canal: Panama"]:
    print(f"{word!r}: {is_palindrome(word)}")  # True, False, True
\`\`\`

It takes **linear time**, and \`letters[::-1]\` makes one copy. To compare:

| Approach | Time | Extra memory |
|---|---|--:|
| Reverse and compare | O(n) | n |
| Two indices | O(n) | 1 |

1. Use the first one where it is clear enough.
2. Use two indices when words are *very* long.
`;

const THINK = "The user asks why the sky is blue. I should keep it short and fit for a child.\n\n- sunlight has all colours\n- blue is scattered the most";
const SKY = "Sunlight looks white, but it is made of **all the colours of the rainbow**. When it travels through the air it bumps into tiny molecules.\n\n> Blue light bounces around the most, so it reaches your eyes from everywhere.\n\nThat is why the whole sky looks blue!";

export const HOSTILE = {
  image: "<img src=x onerror=\"window.pwned=1\"> <svg/onload=window.pwned=1> <iframe src=javascript:window.pwned=1></iframe>",
  script: "<script>window.pwned=1</script>\n\n<style>body{display:none}</style>\n\n<details open ontoggle=window.pwned=1>",
  links: "[a](javascript:window.pwned=1) [b](JaVaScRiPt:window.pwned=1) [c](data:text/html,<script>window.pwned=1</script>) [d](  javascript:window.pwned=1) [e](java\nscript:window.pwned=1) [f](vbscript:x) [g](//evil.example) [h](/v1/models) <javascript:window.pwned=1> ![i](https://evil.example/x.png) [ok](https://example.com/a_(b))",
  code: "```html\n<img src=x onerror=window.pwned=1></code></pre><script>window.pwned=1</script>\n```\n\n`<b>bold</b>`\n\n``` \"><img src=x onerror=window.pwned=1>\nlabel\n```",
  fences: "````\n```\ninner\n\n~~~\nstill inside\n\n<img src=x onerror=window.pwned=1>",
  tables: "| <b>x</b> | [y](javascript:window.pwned=1) |\n|---|---|\n| <img src=x onerror=window.pwned=1> | `|` |\n| a | b | c | d |",
  rtl: "Run `rm \u202e txt.exe` and see \u202egnp.exe and [\u202emoc.elgoog](https://evil.example/)\n\n```c\nif (user) { /* \u2066 admin \u2069 */ }\n```",
  long: "x".repeat(20_000) + "\n\n```\n" + "y".repeat(20_000) + "\n```\n\n|" + "z".repeat(5_000) + "|b|\n|---|---|\n|1|2|",
  deep: "> ".repeat(300) + "deep\n\n" + "- ".repeat(300) + "deep\n\n" + "*".repeat(3_000) + "a" + "*".repeat(3_000) + "\n\n" + "[".repeat(3_000) + "](x)".repeat(300),
  style: "<p style=\"position:fixed;inset:0;background:red\">gone</p>\n\n<a href=x style=display:none>x</a>\n\n# Heading <b onclick=window.pwned=1>x</b>",
};

// Pieces as a tokenizer would cut them.
export const pieces = text => text.match(/\s?[^\s]{1,6}|\s+/gu) ?? [];

// `{ reasoning, content, pause, … }`; `pause` is the time between pieces in milliseconds.
export function answer(question) {
  const q = question.toLowerCase();
  const hostile = /hostile (\w+)/.exec(q);
  if (hostile) return { content: HOSTILE[hostile[1]], pause: 0 };
  if (q.includes("palindrome") || q.includes("code")) return { content: CODE, pause: 2 };
  if (q.includes("sky") || q.includes("think")) return { reasoning: THINK, content: SKY, pause: 25 };
  if (q.includes("forever")) return { content: "word ".repeat(2_000), pause: 10 };
  if (q.includes("lines")) return { content: Array.from({ length: 120 }, (_, n) => `Line ${n + 1}.`).join("\n\n"), pause: 8 };
  if (q.includes("break")) return { content: STORY, pause: 5, breaksAt: 12 };
  if (q.includes("full")) return { status: 400, error: { message: "The prompt has 2048 tokens and the context holds 1024.", type: "invalid_request_error", code: "context_length_exceeded" } };
  if (q.includes("crash")) return { status: 500, error: { message: "The model gave up.", type: "server_error" } };
  if (q.includes("short")) return { content: "Once", pause: 1, finish: "length" };
  return { content: STORY, pause: 4 };
}
