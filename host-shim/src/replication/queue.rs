//! What waits for one subscriber: bounded, and cut instead of growing.

use inference_cache_core::replication::proto::Frame;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tonic::Status;

/// A queue of shared frames between the writer and one gRPC stream.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    frames: VecDeque<Arc<Frame>>,
    bytes: usize,
    limit: usize,
    closed: Option<Status>,
}

impl Queue {
    /// A queue that takes `first` whatever their size, and `limit` bytes of frames beside them.
    pub(crate) fn new(first: Vec<Arc<Frame>>, limit: usize) -> Queue {
        let bytes = first.iter().map(|frame| size(frame)).sum::<usize>();
        let state = State { frames: first.into(), bytes, limit: limit.saturating_add(bytes), closed: None };
        Queue { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Adds a frame. A subscriber for whom there is no room is cut: what waits is dropped.
    pub(crate) fn push(&self, frame: &Arc<Frame>) {
        let overfull = {
            let mut state = self.lock();
            if state.closed.is_some() {
                return;
            }
            state.bytes += size(frame);
            state.frames.push_back(frame.clone());
            state.bytes > state.limit
        };
        if overfull {
            self.close(Status::resource_exhausted("the subscriber reads too slowly"));
        }
        self.changed.notify_one();
    }

    /// Ends the stream with `status`, at once.
    pub(crate) fn close(&self, status: Status) {
        let mut state = self.lock();
        if state.closed.is_none() {
            state.frames = VecDeque::new();
            state.bytes = 0;
            state.closed = Some(status);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Whether the stream has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed.is_some()
    }

    /// The next frame, or why there is none.
    pub(crate) async fn next(&self) -> Result<Frame, Status> {
        loop {
            {
                let mut state = self.lock();
                if let Some(status) = &state.closed {
                    return Err(status.clone());
                }
                if let Some(frame) = state.frames.pop_front() {
                    state.bytes -= size(&frame);
                    drop(state);
                    return Ok(Arc::unwrap_or_clone(frame));
                }
            }
            self.changed.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(frame: &Frame) -> usize {
    frame.payload.len() + 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[tokio::test]
    async fn a_cut_queue_holds_nothing_more() {
        let frame = Arc::new(Frame { payload: vec![0; 1000], ..Frame::default() });
        let queue = Queue::new(vec![frame.clone(); 5], 2000);
        queue.push(&frame);
        assert!(!queue.is_closed());
        for _ in 0..10 {
            queue.push(&frame);
        }
        assert!(queue.is_closed());
        assert!(queue.lock().frames.is_empty());
        assert_eq!(queue.next().await.unwrap_err().code(), Code::ResourceExhausted);
    }
}
