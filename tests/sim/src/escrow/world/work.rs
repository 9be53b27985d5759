//! What hosts compute.

use super::*;

impl World<'_> {
    pub(super) fn begin_jobs(&mut self, host: usize) -> Check {
        let Some(replica) = &mut self.nodes[host].replica else { return Ok(()) };
        for job in replica.take_jobs() {
            self.watch.run(host, self.nodes[host].memory, job.id)?;
            let work = Work::of(&job.body);
            let fate = if self.nodes[host].mask.in_mood(self.now_ms, Mood::Stuck) {
                Fate::Never
            } else if self.nodes[host].mask.in_mood(self.now_ms, Mood::Late) {
                Fate::Late
            } else {
                work.fate
            };
            let computation = Computation {
                tokens: work.tokens,
                limit: job.output_limit,
                pace_ms: work.pace_ms,
                fate,
                began_ms: self.now_ms,
                done: 0,
                text: String::new(),
            };
            self.nodes[host].jobs.insert(job.id, computation);
            let boot = self.nodes[host].boot;
            self.after(work.pace_ms, Do::JobStep { host, boot, id: job.id });
        }
        Ok(())
    }

    pub(super) fn job_step(&mut self, host: usize, boot: u64, id: u64) -> Check {
        use pb::infer_response::Event as Piece;
        let unix_ms = self.host_unix_ms(host);
        let timeout_ms = u64::from(self.cast.terms.execution_timeout_s) * 1_000;
        let now_ms = self.now_ms;
        let node = &mut self.nodes[host];
        let Some(replica) = node.replica.as_mut().filter(|replica| node.boot == boot && replica.runs(id))
        else {
            node.jobs.remove(&id);
            return Ok(());
        };
        let Some(job) = node.jobs.get_mut(&id) else { return Ok(()) };
        let tokens = job.tokens.min(job.limit);
        let age_ms = now_ms - job.began_ms;
        let (end, wait_ms) = match job.fate {
            Fate::Never if age_ms > 2 * timeout_ms => (Some(JobEnd::Failed { kind: 6, tokens: job.done }), 0),
            Fate::Late if age_ms > timeout_ms + 20_000 => {
                (Some(JobEnd::Done { text: job.text.clone(), tokens: job.done }), 0)
            }
            Fate::Never | Fate::Late => (None, 2_000),
            Fate::Fails(kind) if job.done + 1 >= tokens => {
                (Some(JobEnd::Failed { kind, tokens: job.done }), 0)
            }
            Fate::Done if job.done >= tokens => {
                (Some(JobEnd::Done { text: job.text.clone(), tokens: job.done }), 0)
            }
            Fate::Done | Fate::Fails(_) => (None, job.pace_ms),
        };
        let piece = match &end {
            Some(end) => {
                let piece = replica.ended(unix_ms, id, end);
                node.jobs.remove(&id);
                piece
            }
            None if wait_ms == 2_000 => Some(Piece::Beat(pb::Beat {})),
            None => {
                let index = job.done;
                let text = format!("w{index} ");
                job.text.push_str(&text);
                job.done += 1;
                replica.delivered(id, job.done);
                Some(Piece::Delta(pb::Delta { index, text, token_ids: vec![index] }))
            }
        };
        let stream = node.streams.get(&id).copied();
        if let (Some(Stream { gateway_boot, call_id }), Some(piece)) = (stream, piece) {
            self.reply(host, gateway_boot, call_id, Back::Piece(piece));
            if end.is_some() {
                self.reply(host, gateway_boot, call_id, Back::End(Ok(())));
            }
        }
        if end.is_none() {
            self.after(wait_ms.max(1), Do::JobStep { host, boot, id });
        } else {
            self.nodes[host].streams.remove(&id);
        }
        Ok(())
    }
}
