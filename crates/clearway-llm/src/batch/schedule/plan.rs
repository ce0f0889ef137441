//! The next work: who joins, who decodes, how much of which prompt is read.

use std::time::Duration;

use super::sequence::{Chain, Rank, Sequence, State};
use super::{
    Decided, Event, Leaving, Row, Scheduler, Seat, SequenceId, Started, Waiting, What, table,
};
use crate::batch::runner::{Block, Change, Read, SlotState, Work};

/// Part of the head's share of a chunk that shorter prompts behind it may have: one of so many.
const SHORT_SHARE: usize = 2;
/// A prompt is short beside one with so many times its tokens.
const SHORT: usize = 4;
/// Tokens of a chunk at least, where a block has fewer.
const LEAST_CHUNK: usize = 16;

/// A work that is being planned.
#[derive(Default)]
struct Plan {
    work: Work,
    rows: Vec<Row>,
    /// Sequences with something to do in it.
    touched: Vec<SequenceId>,
    published: Vec<Block>,
    read: usize,
    host: bool,
    /// Nobody decodes while somebody reads. Where only whole texts count, steps of few rows are a waste: those who have read wait
    /// for the others.
    reads_alone: bool,
}

impl Scheduler {
    /// The next work, which counts as started. `None` where there is nothing to do, or nothing before a work under way is
    /// finished.
    pub fn plan(&mut self, now: Duration) -> Option<Work> {
        if !self.may_start() {
            return None;
        }
        self.admit(now);
        self.find_more();
        if self.under_way.iter().any(|started| started.host)
            || (!self.under_way.is_empty() && self.any_running(Sequence::needs_host))
        {
            return None;
        }
        let mut plan = Plan::default();
        self.open_read();
        let steps = self.steps();
        plan.reads_alone = self.all_patient() && self.any_running(|s| s.unread() > 0);
        if !plan.reads_alone {
            self.decode(steps, &mut plan, now);
        }
        self.read(&mut plan, now);
        if plan.touched.is_empty() && plan.reads_alone {
            // Who wants to read has no memory: the others go on and give theirs back.
            self.decode(steps, &mut plan, now);
        }
        if plan.touched.is_empty() {
            return None;
        }
        Some(self.start(plan, steps, now))
    }

    /// Whether works under way leave room for another. While somebody waits, what is under way must not take long.
    fn may_start(&self) -> bool {
        if self.under_way.is_empty() {
            return true;
        }
        let expected: Duration = self.under_way.iter().map(|started| started.expected).sum();
        let waits = !self.waiting.is_empty() || self.any_running(|s| !s.is_decoding());
        self.under_way.len() < self.limits.ahead && (!waits || expected <= self.policy.patience)
    }

    /// Whether nobody reads tokens as they come.
    fn all_patient(&self) -> bool {
        !self.any_running(|sequence| !sequence.patient)
    }

    fn any_running(&self, is_so: impl Fn(&Sequence) -> bool) -> bool {
        self.running.iter().any(|(_, id)| self.sequences.get(id).is_some_and(&is_so))
    }

    /// Gives slots to sequences that wait, the highest rank first. The first for which there is no memory ends it: nobody
    /// overtakes it for want of memory.
    fn admit(&mut self, now: Duration) {
        let mut passed: Vec<SequenceId> = Vec::new();
        while let Some(slot) = self.seats.iter().position(|&seat| seat == Seat::Free) {
            let Some(id) = self.next_waiting(&passed, now) else { break };
            if let Some((to, hash)) = self.reader_ahead(id) {
                if hash.is_some() {
                    self.decide(now, Decided::Deferred { sequence: id, to });
                }
                if let Some(waiting) = self.waiting.iter_mut().find(|w| w.id == id) {
                    waiting.hash = hash;
                }
                passed.push(id);
                continue;
            }
            if !self.seat(id, slot, now) {
                break;
            }
        }
    }

    /// Who is next. Age raises the priority.
    fn next_waiting(&self, passed: &[SequenceId], now: Duration) -> Option<SequenceId> {
        let ageing = self.policy.ageing.as_micros().max(1);
        let aged = |waiting: &Waiting| {
            let steps = now.saturating_sub(waiting.since).as_micros() / ageing;
            let steps = i32::try_from(steps).unwrap_or(i32::MAX);
            Rank::new(waiting.rank.priority().saturating_add(steps), waiting.id)
        };
        let ready = self.waiting.iter().filter(|waiting| {
            waiting.after <= self.finished
                && waiting.hash.is_none_or(|hash| !self.claims.contains_key(&hash))
                && !passed.contains(&waiting.id)
        });
        ready.min_by_key(|waiting| aged(waiting)).map(|waiting| waiting.id)
    }

    /// The sequence that reads the next tokens of this one anyway and goes first, and the hash of the last block they share.
    fn reader_ahead(&mut self, id: SequenceId) -> Option<(SequenceId, Option<u64>)> {
        let size = self.pool.block_size();
        let sequence = self.sequences.get(&id)?;
        let fresh = sequence.generated() == 0;
        if let Some(leader) = sequence.leader.filter(|_| fresh)
            && let Some(first) = self.sequences.get(&leader)
            && !first.is_decoding()
        {
            return Some((leader, None));
        }
        let Self { sequences, pool, claims, .. } = self;
        let sequence = sequences.get_mut(&id)?;
        let full = sequence.to_read() / size;
        let mut chain = Chain::default();
        while let Some(key) = sequence.find_next(chain, pool) {
            chain = Chain { len: chain.len + 1, key: Some(key), broken: false };
        }
        if chain.len >= full {
            return None;
        }
        let owner = *claims.get(&sequence.hash(chain.len, size))?;
        let mut last = chain.len;
        while last + 1 < full && claims.get(&sequence.hash(last + 1, size)) == Some(&owner) {
            last += 1;
        }
        let hash = sequence.hash(last, size);
        let priority = sequence.rank.priority();
        let ahead = sequences.get(&owner).is_some_and(|other| other.rank.priority() >= priority);
        ahead.then_some((owner, Some(hash)))
    }

    /// Gives a sequence a slot and the blocks that the cache has of its text; whether there is memory for the rest.
    fn seat(&mut self, id: SequenceId, slot: usize, now: Duration) -> bool {
        let size = self.pool.block_size();
        let promised: usize = self.promised();
        let decoding = self.running.iter().filter(|(_, id)| self.sequences[id].is_decoding());
        // Those who decode need a block each before long.
        let reserve = decoding.count().min(self.pool.len() / 8);
        let leader = self.partial_of_leader(id);
        let Self { sequences, pool, claims, .. } = self;
        let Some(sequence) = sequences.get_mut(&id) else { return false };
        let mut chain = Chain::default();
        let mut blocks = Vec::new();
        while let Some(key) = sequence.find_next(chain, pool) {
            chain = Chain { len: chain.len + 1, key: Some(key), broken: false };
            blocks.push(key.block());
        }
        let revived = blocks.iter().filter(|&&block| pool.holders(block) == 0).count();
        let needed = pool.blocks_for(sequence.text.len()) - blocks.len();
        if needed + revived + promised + reserve > pool.available() && !self.running.is_empty() {
            return false;
        }
        for &block in &blocks {
            pool.share(block);
        }
        let mut read = chain.len * size;
        let partial =
            leader.filter(|_| read < sequence.to_read() && sequence.unread_blocks(read, size) == 0);
        let mut forked = None;
        if let Some((from, leader)) = partial
            && let Some(block) = pool.take()
        {
            pool.share(from);
            sequence.copy_of = Some(from);
            blocks.push(block);
            read = sequence.to_read();
            forked = Some(leader);
        }
        sequence.blocks = blocks;
        sequence.chain = chain;
        sequence.tabled = 0;
        sequence.state = State::Reading { slot, read };
        for index in chain.len..sequence.to_read() / size {
            claims.entry(sequence.hash(index, size)).or_insert(id);
        }
        let rank = sequence.rank;
        if sequence.admitted.is_none() {
            sequence.admitted = Some(now);
            sequence.cached = read;
            self.counts.cached += read as u64;
            let what = What::Admitted { waited: now.saturating_sub(sequence.submitted) };
            let (request, choice) = (sequence.request, sequence.choice);
            self.events.push(Event { request, choice, what });
        }
        self.seats[slot] = Seat::Taken;
        self.waiting.retain(|waiting| waiting.id != id);
        let at = self.running.partition_point(|(other, _)| *other < rank);
        self.running.insert(at, (rank, id));
        self.decide(now, Decided::Admitted { sequence: id, slot, cached: read, forked });
        true
    }

    /// Blocks that sequences which read have not got yet.
    fn promised(&self) -> usize {
        let missing = |sequence: &Sequence| match sequence.state {
            State::Reading { .. } => {
                self.pool.blocks_for(sequence.text.len()).saturating_sub(sequence.blocks.len())
            }
            _ => 0,
        };
        self.running.iter().map(|(_, id)| missing(&self.sequences[id])).sum()
    }

    /// The block of the first text of the same request that is full in part when the prompt is read.
    fn partial_of_leader(&self, id: SequenceId) -> Option<(Block, SequenceId)> {
        let sequence = self.sequences.get(&id).filter(|s| s.generated() == 0)?;
        let leader = sequence.leader?;
        let first = self.sequences.get(&leader).filter(|first| first.is_decoding())?;
        let block = first.blocks.get(sequence.to_read() / self.pool.block_size())?;
        Some((*block, leader))
    }

    /// Sequences that read take blocks that somebody else has read in the meantime.
    fn find_more(&mut self) {
        let size = self.pool.block_size();
        let Self { sequences, running, pool, claims, counts, .. } = self;
        for (_, id) in running.iter() {
            let Some(sequence) = sequences.get_mut(id) else { continue };
            while let State::Reading { slot, read } = sequence.state
                && read == sequence.chain.len * size
                && sequence.blocks.len() == sequence.chain.len
                && let Some(key) = sequence.find_next(sequence.chain, pool)
            {
                pool.share(key.block());
                sequence.blocks.push(key.block());
                let index = sequence.chain.len;
                let hash = sequence.hash(index, size);
                if claims.get(&hash) == Some(id) {
                    claims.remove(&hash);
                }
                sequence.chain = Chain { len: index + 1, key: Some(key), broken: false };
                sequence.state = State::Reading { slot, read: read + size };
                if sequence.generated() == 0 {
                    sequence.cached += size;
                    counts.cached += size as u64;
                }
            }
        }
    }

    /// Sequences whose text is in the cache decode from now on.
    fn open_read(&mut self) {
        for (_, id) in &self.running {
            if let Some(sequence) = self.sequences.get_mut(id) {
                sequence.open_if_read();
            }
        }
    }

    /// Steps of the next work.
    fn steps(&self) -> usize {
        let rows = self.running.len();
        let waits = !self.waiting.is_empty()
            || self.any_running(|s| !s.is_decoding() || s.is_new())
            || self.any_running(Sequence::needs_host);
        let Some(step) = self.times.step(rows).filter(|_| !waits) else { return 1 };
        let patience = match rows == 1 || self.all_patient() {
            true => self.policy.patience_alone,
            false => self.policy.patience,
        };
        let fit = patience.as_secs_f64() / step.as_secs_f64().max(1e-9);
        let left = self.running.iter().filter_map(|(_, id)| self.sequences.get(id));
        let longest = left.map(Sequence::steps_left).max().unwrap_or(1);
        let most = self.limits.steps.min(longest.max(1));
        let steps = (fit as usize).clamp(1, most);
        // Memory decides too: where it is short, nobody loses blocks for steps of a later work.
        let wanted = self.running.iter().filter_map(|(_, id)| self.sequences.get(id));
        let needed: usize = wanted.map(|s| self.missing_blocks(s, steps)).sum();
        if needed <= self.pool.available() { steps } else { 1 }
    }

    fn missing_blocks(&self, sequence: &Sequence, steps: usize) -> usize {
        let State::Decoding { reach, .. } = sequence.state else { return 0 };
        let reach = reach.saturating_add(steps).min(sequence.end);
        self.pool.blocks_for(reach).saturating_sub(sequence.blocks.len())
    }

    /// Rows of sequences that decode.
    fn decode(&mut self, steps: usize, plan: &mut Plan, now: Duration) {
        // Sequences may lose their slots meanwhile.
        let ids: Vec<SequenceId> = self.running.iter().map(|&(_, id)| id).collect();
        for id in ids {
            if self.sequences.get(&id).is_some_and(Sequence::is_decoding) {
                self.decode_one(id, steps, plan, now);
            }
        }
    }

    fn decode_one(&mut self, id: SequenceId, steps: usize, plan: &mut Plan, now: Duration) {
        let size = self.pool.block_size();
        let Some(sequence) = self.sequences.get(&id) else { return };
        let State::Decoding { slot, reach, room } = sequence.state else { return };
        let due = steps.min(sequence.end - reach);
        if due == 0 {
            return;
        }
        let wanted = self.pool.blocks_for(reach + due);
        let has = self.grow(id, wanted, &plan.touched, now);
        let due = due.min((has * size).saturating_sub(reach));
        if due == 0 {
            self.decide(now, Decided::Stalled { sequence: id });
            return;
        }
        self.tell(id, plan);
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let end = (has * size).min(sequence.end);
        let changes = &mut plan.work.changes;
        if room == 0 {
            // The host's draws depend on the position, which is the length of the text.
            let hosted = sequence.needs_host();
            let state = SlotState {
                token: sequence.text[reach],
                position: reach,
                end,
                sampling: sequence.sampling.clone(),
                stop_tokens: sequence.stop_tokens.clone(),
                history: if hosted { sequence.text.clone() } else { Vec::new() },
            };
            changes.push(Change::Open { slot, state: Box::new(state) });
        } else if end > room {
            changes.push(Change::End { slot, end });
        }
        sequence.state = State::Decoding { slot, reach: reach + due, room: end };
        plan.host |= sequence.needs_host();
        plan.rows.push(Row { slot, id, due });
        plan.touched.push(id);
    }

    /// Brings the device's block table of a sequence up to date.
    fn tell(&mut self, id: SequenceId, plan: &mut Plan) {
        let next = self.started + 1;
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(slot) = sequence.slot() else { return };
        if let Some(from) = sequence.copy_of.take() {
            // The copy goes to the block behind the shared ones.
            let to = sequence.blocks[sequence.chain.len];
            plan.work.changes.push(Change::Copy { from, to });
            self.counts.copied += 1;
            self.leaving.push(Leaving { work: next, blocks: vec![from], slot: None });
        }
        let new = &sequence.blocks[sequence.tabled..];
        plan.work.changes.extend(table(slot, sequence.tabled, new));
        sequence.tabled = sequence.blocks.len();
    }

    /// Chunks of prompts.
    fn read(&mut self, plan: &mut Plan, now: Duration) {
        let unread = |id: &SequenceId| self.sequences.get(id).map_or(0, Sequence::unread);
        let readers: Vec<(Rank, SequenceId, usize)> = self
            .running
            .iter()
            .map(|(rank, id)| (*rank, *id, unread(id)))
            .filter(|(.., unread)| *unread > 0)
            .collect();
        if readers.is_empty() {
            return;
        }
        let mut left = self.chunk_tokens(plan);
        for (id, tokens) in shares(&readers, left) {
            let tokens = tokens.min(left);
            if tokens > 0 {
                left -= self.read_one(id, tokens, plan, now);
            }
        }
    }

    /// Tokens of prompts that the next work reads.
    fn chunk_tokens(&mut self, plan: &Plan) -> usize {
        let most = self.limits.chunk;
        if self.all_patient() || plan.rows.is_empty() && !self.any_running(Sequence::is_decoding) {
            self.unmeasured = 0;
            return most;
        }
        let least = LEAST_CHUNK.max(self.limits.block).min(most);
        self.unmeasured += 1;
        let step = self.times.step(plan.rows.len());
        // Without a step that is measured chunks cannot grow: where prompts never end, one has to be planned.
        let due = step.is_none() || self.unmeasured > self.policy.measure_every;
        if due && !plan.rows.is_empty() {
            self.unmeasured = 0;
            return 0;
        }
        let Some(step) = step else { return least };
        self.times.tokens_within(step.mul_f64(1.0 + self.policy.read_share), least, most)
    }

    /// Reads up to `tokens` tokens of a sequence; how many.
    fn read_one(&mut self, id: SequenceId, tokens: usize, plan: &mut Plan, now: Duration) -> usize {
        let size = self.pool.block_size();
        let Some(sequence) = self.sequences.get(&id) else { return 0 };
        let State::Reading { slot, read } = sequence.state else { return 0 };
        let to_read = sequence.to_read();
        let mut end = (read + tokens).min(to_read);
        let aligned = end / size * size;
        if end < to_read && aligned > read {
            end = aligned;
        }
        // The last token of the text needs a place too, in the first decode step.
        let places = if end == to_read { end + 1 } else { end };
        let has = self.grow(id, self.pool.blocks_for(places), &plan.touched, now);
        let end = end.min(has * size);
        if end <= read {
            self.decide(now, Decided::Stalled { sequence: id });
            return 0;
        }
        self.tell(id, plan);
        plan.touched.push(id);
        let next = self.started + 1;
        let Self { sequences, pool, claims, .. } = self;
        let Some(sequence) = sequences.get_mut(&id) else { return 0 };
        sequence.last_work = next;
        plan.work.read.push(Read {
            slot,
            position: read,
            tokens: sequence.text[read..end].to_vec(),
            adapter: sequence.sampling.adapter,
        });
        plan.read += end - read;
        sequence.state = State::Reading { slot, read: end };
        for index in read / size..end / size {
            let hash = sequence.hash(index, size);
            if claims.get(&hash) == Some(&id) {
                claims.remove(&hash);
            }
        }
        plan.published.extend(sequence.publish(end, pool));
        let last = end == to_read;
        self.decide(now, Decided::Read { sequence: id, position: read, tokens: end - read, last });
        if last && has * size > end && !plan.reads_alone {
            // Its first step is part of the same work.
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.open_if_read();
            }
            plan.touched.pop();
            self.decode_one(id, 1, plan, now);
            if plan.touched.last() != Some(&id) {
                plan.touched.push(id);
            }
        }
        end - read
    }

    /// Books a work as started.
    fn start(&mut self, plan: Plan, steps: usize, now: Duration) -> Work {
        let Plan { mut work, mut rows, touched, published, read, host, .. } = plan;
        self.started += 1;
        let number = self.started;
        for id in &touched {
            if let Some(sequence) = self.sequences.get_mut(id) {
                sequence.last_work = number;
            }
        }
        let closed = std::mem::take(&mut self.closes);
        let closes = closed.iter().map(|&slot| Change::Close { slot });
        work.changes.splice(0..0, closes);
        rows.sort_unstable_by_key(|row| row.slot);
        work.decode = rows.iter().map(|row| row.slot).collect();
        // A slot that is due fewer tokens has its end there.
        work.steps = rows.iter().map(|row| row.due).max().unwrap_or(0).min(steps);
        let step = self.times.step(rows.len()).unwrap_or_default();
        let expected = match (read, work.steps) {
            (0, steps) => step * steps as u32,
            (read, 0) => self.times.chunk(read).unwrap_or_default(),
            (read, _) => self.times.beside(read).unwrap_or_default().max(step),
        };
        let beside = if self.limits.mixed && work.steps == 1 { read } else { 0 };
        self.counts.works += 1;
        self.counts.mixed += u64::from(beside > 0);
        self.counts.steps += work.steps as u64;
        self.counts.read += read as u64;
        let expected_us = u64::try_from(expected.as_micros()).unwrap_or(u64::MAX);
        let (count, steps) = (rows.len(), work.steps);
        self.log.push(now, number, Decided::Decode { rows: count, steps, beside, expected_us });
        self.under_way.push_back(Started {
            number,
            at: now,
            rows,
            steps,
            read,
            host,
            expected,
            touched,
            published,
            closed,
        });
        work
    }
}

impl Sequence {
    /// Decodes from now on if its text is read.
    fn open_if_read(&mut self) {
        if let State::Reading { slot, read } = self.state
            && read == self.to_read()
        {
            self.state = State::Decoding { slot, reach: read, room: 0 };
        }
    }

    /// Whether its first step is yet to come.
    fn is_new(&self) -> bool {
        matches!(self.state, State::Decoding { room: 0, .. })
    }

    /// Full blocks behind the first `read` tokens that are to be read.
    fn unread_blocks(&self, read: usize, size: usize) -> usize {
        (self.to_read() - read) / size
    }

    /// Steps that are not under way.
    fn steps_left(&self) -> usize {
        match self.state {
            State::Decoding { reach, .. } => self.end - reach,
            _ => 0,
        }
    }
}

/// Who reads how much of a chunk of `left` tokens. The first goes on with at least half of it; prompts of its priority that
/// are much shorter get the other half, the shortest first. What is left goes to the others in their order.
fn shares(readers: &[(Rank, SequenceId, usize)], left: usize) -> Vec<(SequenceId, usize)> {
    let Some(&(rank, head, unread)) = readers.first() else { return Vec::new() };
    let others = &readers[1..];
    let is_short = |&&(other, _, tokens): &&(Rank, SequenceId, usize)| {
        other.priority() == rank.priority() && tokens.saturating_mul(SHORT) <= unread
    };
    let mut short: Vec<(SequenceId, usize)> =
        others.iter().filter(is_short).map(|&(_, id, tokens)| (id, tokens)).collect();
    short.sort_by_key(|&(_, tokens)| tokens);
    let wanted: usize = short.iter().map(|(_, tokens)| tokens).sum();
    let kept = wanted.min(left / SHORT_SHARE);
    let rest =
        others.iter().filter(|reader| !is_short(reader)).map(|&(_, id, tokens)| (id, tokens));
    let first = (head, unread.min(left - kept));
    std::iter::once(first).chain(short).chain(rest).collect()
}
