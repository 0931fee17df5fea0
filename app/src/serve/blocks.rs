//! Answers in blocks, as Anthropic's messages and OpenAI's responses have them. In: bits of one answer. Out: blocks of
//! reasoning, text and calls, and how each opens, grows and closes.

use super::error::Result;
use super::fields::new_id;
use super::talk::{Bit, End, Said, Talk};
use llm::tools::Call;

#[derive(Clone, Debug)]
pub enum Block {
    Thought { id: String, text: String },
    Text { id: String, text: String },
    Call { id: String, call: Call },
}

/// What happens to the block with this number.
pub enum Change {
    Open(usize, Block),
    Grow(usize, Grown),
    /// With everything that it became.
    Close(usize, Block),
}

pub enum Grown {
    Thought(String),
    Text(String),
    Arguments(String),
}

#[derive(Default)]
pub struct Blocks {
    pub all: Vec<Block>,
    open: bool,
    pub end: Option<End>,
}

impl Blocks {
    /// Takes one bit in and says what changes.
    pub fn take(&mut self, bit: Bit) -> Vec<Change> {
        let mut out = vec![];
        if !bit.reasoning.is_empty() {
            self.grow(bit.reasoning, true, &mut out);
        }
        if !bit.text.is_empty() {
            self.grow(bit.text, false, &mut out);
        }
        for call in bit.calls {
            self.close(&mut out);
            let index = self.all.len();
            let id = new_id("call_");
            let empty = Call { name: call.name.clone(), arguments: String::new() };
            out.push(Change::Open(index, Block::Call { id: id.clone(), call: empty }));
            out.push(Change::Grow(index, Grown::Arguments(call.arguments.clone())));
            self.all.push(Block::Call { id, call });
            self.open = true;
            self.close(&mut out);
        }
        if bit.end.is_some() {
            self.close(&mut out);
            self.end = bit.end;
        }
        out
    }

    fn grow(&mut self, more: String, reasoning: bool, out: &mut Vec<Change>) {
        let same = match self.all.last() {
            Some(Block::Thought { .. }) => self.open && reasoning,
            Some(Block::Text { .. }) => self.open && !reasoning,
            _ => false,
        };
        if !same {
            self.close(out);
            let block = match reasoning {
                true => Block::Thought { id: new_id("rs_"), text: String::new() },
                false => Block::Text { id: new_id("msg_"), text: String::new() },
            };
            out.push(Change::Open(self.all.len(), block.clone()));
            self.all.push(block);
            self.open = true;
        }
        let index = self.all.len() - 1;
        if let Some(Block::Thought { text, .. } | Block::Text { text, .. }) = self.all.last_mut() {
            text.push_str(&more);
        }
        let grown = if reasoning { Grown::Thought(more) } else { Grown::Text(more) };
        out.push(Change::Grow(index, grown));
    }

    fn close(&mut self, out: &mut Vec<Change>) {
        if let (true, Some(block)) = (std::mem::take(&mut self.open), self.all.last()) {
            out.push(Change::Close(self.all.len() - 1, block.clone()));
        }
    }

    /// Waits for the end.
    pub async fn whole(talk: &mut Talk) -> Result<Blocks> {
        let mut blocks = Blocks::default();
        while let Some(said) = talk.next().await {
            match said {
                Said::Started => {}
                Said::Failed(refused) => return Err(refused),
                Said::Bit { bit, .. } => drop(blocks.take(bit)),
            }
        }
        Ok(blocks)
    }
}
