//! `/v1/completions`: chunks and the whole answer, key for key as recorded. No role chunk; `echo` puts the
//! prompt before the first token.

use bytes::Bytes;

use super::chunk;
use super::generation::{Choice, Generation, Render, Token, ids_or_null, quote, quote_or_null};

#[derive(Debug)]
pub(super) struct CompletionRender {
    head: String,
}

impl CompletionRender {
    pub(super) fn new(generation: &Generation) -> Self {
        Self { head: chunk::head("text_completion", generation) }
    }
}

impl Render for CompletionRender {
    fn token(&mut self, generation: &Generation, token: Token, out: &mut Vec<Bytes>) {
        let Some(choice) = generation.choices.get(token.choice) else { return };
        let mut text = choice.piece(token.index);
        let mut prompt_ids = "null".to_owned();
        if token.index == 0 {
            text.insert_str(0, echoed(generation, choice));
            prompt_ids = ids_or_null(generation.ask.return_token_ids, prompt_tokens(generation, choice));
        }
        let id = usize::try_from(token.index).ok().and_then(|index| choice.output.get(index));
        let ids = ids_or_null(generation.ask.return_token_ids, id.map_or(&[], std::slice::from_ref));
        let (finish, stop) = if token.is_last {
            (quote(choice.finish), quote_or_null(choice.stop.as_deref()))
        } else {
            ("null".into(), "null".into())
        };
        let fingerprint = chunk::fingerprint(generation, token.is_last);
        let prompt = prompt_tokens(generation, choice).len() as u64;
        out.push(Bytes::from(format!(
            "{}{{\"index\":{},\"text\":{},\"logprobs\":null,\"finish_reason\":{finish},\"stop_reason\":{stop},\
             \"prompt_token_ids\":{prompt_ids},\"token_ids\":{ids}}}]{}{fingerprint}}}\n\n",
            self.head,
            token.choice,
            quote(&text),
            chunk::continuous_usage(generation, prompt, token.index + 1),
        )));
    }

    fn close(&mut self, generation: &Generation, out: &mut Vec<Bytes>) {
        chunk::close(&self.head, generation, "", out);
    }

    fn whole(&self, generation: &Generation) -> String {
        let choices = generation.choices.iter().enumerate();
        let choices: Vec<String> =
            choices.map(|(index, choice)| whole_choice(generation, index, choice)).collect();
        chunk::whole("text_completion", generation, &choices, "null", "")
    }
}

fn whole_choice(generation: &Generation, index: usize, choice: &Choice) -> String {
    let text = quote(&format!("{}{}", echoed(generation, choice), choice.text()));
    let asked = generation.ask.return_token_ids;
    format!(
        "{{\"index\":{index},\"text\":{text},\"logprobs\":null,\"finish_reason\":\"{}\",\"stop_reason\":{},\
         \"token_ids\":{},\"prompt_logprobs\":null,\"prompt_token_ids\":{},\"routed_experts\":null}}",
        choice.finish,
        quote_or_null(choice.stop.as_deref()),
        ids_or_null(asked, &choice.output),
        ids_or_null(asked, prompt_tokens(generation, choice)),
    )
}

fn echoed<'a>(generation: &'a Generation, choice: &Choice) -> &'a str {
    let prompt = generation.ask.prompts.get(choice.prompt).filter(|_| generation.ask.echo);
    prompt.map_or("", |p| p.text.as_str())
}

fn prompt_tokens<'a>(generation: &'a Generation, choice: &Choice) -> &'a [u32] {
    generation.ask.prompts.get(choice.prompt).map_or(&[][..], |p| &p.tokens)
}
