//! Aim: each end takes what the protocol allows and refuses the rest by name; credit is neither lost
//! nor made. Method: frames are made by the codec and handed from one end to the other; then random
//! calls of both, with all state walked after each.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::control::{Credit, ErrorFrame, Goodbye, GoodbyeReason};
use crate::entry::{KeyEntry, PutEntry};
use crate::error::WireError;
use crate::frame::{FRAME_HEAD_LEN, Flags, FrameHead, FrameLimits, Partial};
use crate::hello::{ClientHello, NodeTerms, Security};
use crate::reply::{self, Reply, ReplyHead};
use crate::request::{self, Request, RequestHead};
use crate::status::KeyStatus;
use crate::verb::Features;

const LIMITS: FrameLimits = FrameLimits {
    body_len_max: 4096,
    values_len_max: 8192,
};

fn terms(requests: u32) -> NodeTerms {
    NodeTerms {
        version: 1,
        security: Security::default(),
        shard: 0,
        features: Features::ALL,
        node_id: [1; 16],
        node_epoch: 1,
        map_epoch: 1,
        shards: 1,
        limits: LIMITS,
        batch_max: 4,
        credit_requests: requests,
        credit_bytes: 16384,
        block_len_max: 4096,
        lease_max_ms: 1000,
        deadline_max_ms: 1000,
        silence_max_ms: 0,
    }
}

fn hello() -> ClientHello<'static> {
    ClientHello {
        version_low: 1,
        version_high: 1,
        shard: None,
        features: Features::ALL,
        client_id: [2; 16],
        limits: LIMITS,
        token: b"",
        name: "",
    }
}

const OFFER: Offer = Offer {
    features: Features::ALL,
    limits: LIMITS,
};

/// Both ends, with the hellos exchanged.
fn open(requests: u32) -> (ClientSession, ServerSession) {
    let mut server = ServerSession::new(terms(requests));
    let mut client = ClientSession::new(OFFER);
    let head = made(|out| hello().encode(out)).0;
    assert_eq!(server.on_head(&head), Ok(Incoming::Hello));
    let agreed = server.on_hello(&hello()).unwrap();
    let head = made(|out| agreed.encode([], out)).0;
    assert_eq!(client.on_head(&head), Ok(Expected::Hello));
    client.on_hello(&agreed).unwrap();
    (client, server)
}

/// A frame, as its receiver has it.
fn made(encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>) -> (FrameHead, Vec<u8>) {
    let mut out = vec![0; 4096];
    let len = encode(&mut out).unwrap();
    let Ok(Partial::Whole(head)) = FrameHead::parse(&out[..len], &FrameLimits::default()) else {
        panic!("no head");
    };
    (head, out[FRAME_HEAD_LEN..len].to_vec())
}

fn exists(id: u64, count: usize) -> (FrameHead, Vec<u8>) {
    let entries = std::iter::repeat_n(KeyEntry::plain(b"key"), count);
    made(|out| request::encode(Verb::Exists, id, &RequestHead::default(), entries, out))
}

fn misses(verb: Verb, id: u64, flags: Flags, first: u32, count: usize) -> (FrameHead, Vec<u8>) {
    let head = ReplyHead {
        first,
        map_epoch: 1,
    };
    let records = std::iter::repeat_n(KeyStatus::Miss, count);
    made(|out| reply::encode(verb, id, flags, &head, records, out))
}

#[test]
fn request_before_the_hello_is_refused() {
    let mut server = ServerSession::new(terms(2));
    assert_eq!(server.frame_limits(), FrameLimits::BEFORE_HELLO);
    let error = server.on_head(&exists(1, 1).0).unwrap_err();
    let verb_number = Verb::Exists.number();
    assert_eq!(error, SessionError::HelloExpected { verb_number });
    assert_eq!(error.code(), ErrorCode::HelloExpected);

    let mut client = ClientSession::new(OFFER);
    let error = client.begin(Verb::Exists, 64, 0, 1).unwrap_err();
    let state = SessionState::Hello;
    assert_eq!(error, SessionError::NotOpen { state });
    let reply = misses(Verb::Exists, 1, Flags::NONE, 0, 1).0;
    let error = client.on_head(&reply).unwrap_err();
    assert_eq!(error, SessionError::HelloExpected { verb_number });
}

#[test]
fn second_hello_is_refused_by_both() {
    let (mut client, mut server) = open(2);
    assert_eq!(server.frame_limits(), LIMITS);
    let head = made(|out| hello().encode(out)).0;
    assert_eq!(server.on_head(&head), Err(SessionError::HelloAgain));
    assert_eq!(server.on_hello(&hello()), Err(SessionError::HelloAgain));
    let head = made(|out| terms(2).encode([], out)).0;
    assert_eq!(client.on_head(&head), Err(SessionError::HelloAgain));
    assert_eq!(client.on_hello(&terms(2)), Err(SessionError::HelloAgain));
}

#[test]
fn hellos_agree_on_version_and_features() {
    let mut server = ServerSession::new(terms(2));
    let later = ClientHello {
        version_low: 2,
        version_high: 5,
        ..hello()
    };
    let error = server.on_hello(&later).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Version);
    assert!(error.to_string().contains("2 to 5"), "{error}");
    let some = ClientHello {
        version_high: 9,
        features: Features(Features::PINS.0 | 1 << 60),
        ..hello()
    };
    let agreed = server.on_hello(&some).unwrap();
    assert_eq!((agreed.version, agreed.features), (1, Features::PINS));

    let mut client = ClientSession::new(Offer {
        features: Features::PINS,
        ..OFFER
    });
    let error = client.on_hello(&terms(2)).unwrap_err();
    assert!(matches!(error, SessionError::Features { .. }), "{error}");
    client.on_hello(&agreed).unwrap();
    let error = client.begin(Verb::Lease, 64, 0, 1).unwrap_err();
    assert_eq!(error, SessionError::Feature { verb: "lease" });
    assert!(client.begin(Verb::Pin, 64, 0, 1).is_ok());
    let lease = request::encode(
        Verb::Lease,
        1,
        &RequestHead::default(),
        [KeyEntry::plain(b"key")],
        &mut [0; 256],
    );
    assert!(lease.is_ok());
    let entries = [KeyEntry::plain(b"key")];
    let head = made(|out| request::encode(Verb::Lease, 1, &RequestHead::default(), entries, out)).0;
    let refused = Incoming::Refused(ErrorCode::FeatureNotInForce);
    assert_eq!(server.on_head(&head), Ok(refused));
    server.end(1, true, false).unwrap();
    server.check();
}

#[test]
fn request_ids_have_to_rise() {
    let (_, mut server) = open(4);
    server.on_head(&exists(5, 1).0).unwrap();
    for id in [0, 4, 5] {
        let error = server.on_head(&exists(id, 1).0).unwrap_err();
        let limit = Limit::AtLeast(6);
        assert_eq!(error, SessionError::RequestId { id, limit });
        assert_eq!(error.code(), ErrorCode::RequestId);
    }
    server.on_head(&exists(9, 1).0).unwrap();
    assert_eq!(server.under_way(), 2);
    let goodbye = Goodbye {
        reason: GoodbyeReason::Done,
        close_ms: 0,
    };
    let mut head = made(|out| goodbye.encode(out)).0;
    head.request_id = 3;
    assert!(matches!(
        server.on_head(&head),
        Err(SessionError::RequestId { id: 3, .. })
    ));
}

#[test]
fn request_over_the_credit_is_refused_by_both() {
    let (mut client, mut server) = open(2);
    for id in 1..=2 {
        assert_eq!(client.begin(Verb::Exists, 64, 0, 1), Ok(id));
        server.on_head(&exists(id, 1).0).unwrap();
    }
    let short = |what, needed, left| SessionError::Credit { what, needed, left };
    let error = client.begin(Verb::Exists, 64, 0, 1).unwrap_err();
    assert_eq!(error, short("requests", 1, 0));
    assert!(error.is_retryable());
    let error = server.on_head(&exists(3, 1).0).unwrap_err();
    assert_eq!(error, short("requests", 1, 0));
    assert_eq!(error.code(), ErrorCode::OverCredit);

    let (mut client, mut server) = open(9);
    let put = |id| {
        let entry = PutEntry {
            key: b"key",
            hint: terrace_types::Hint::default(),
            len: 8192,
            checksum: terrace_types::Checksum(0),
        };
        made(|out| request::encode(Verb::Put, id, &RequestHead::default(), [entry], out))
    };
    let (head, body) = put(1);
    client.begin(Verb::Put, body.len(), 8192, 1).unwrap();
    server.on_head(&head).unwrap();
    let (needed, left) = (head.frame_len(), 16384 - head.frame_len());
    let error = client.begin(Verb::Put, body.len(), 8192, 1).unwrap_err();
    assert_eq!(error, short("bytes", needed, left));
    let error = server.on_head(&put(2).0).unwrap_err();
    assert_eq!(error, short("bytes", needed, left));
    server.check();
}

#[test]
fn client_keeps_the_limits_of_the_node() {
    let (mut client, _) = open(2);
    for (body_len, values_len, entries, wrong) in [
        (4097, 0, 1, "body length"),
        (64, 8193, 1, "values length"),
        (64, 0, 5, "count of entries"),
    ] {
        let error = client.begin(Verb::Put, body_len, values_len, entries);
        let Err(SessionError::OverLimit { field, .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(field, wrong);
    }
    let error = client.begin(Verb::Cancel, 0, 0, 0).unwrap_err();
    assert!(matches!(error, SessionError::Direction { .. }), "{error}");
    assert_eq!(client.under_way(), 0);
}

#[test]
fn batch_over_the_limit_ends_the_request_only() {
    let (_, mut server) = open(2);
    let (head, body) = exists(1, 5);
    server.on_head(&head).unwrap();
    let request = Request::decode(&head, &body).unwrap();
    let error = server.on_request(&head, &request).unwrap_err();
    assert_eq!(error.code(), ErrorCode::MalformedBody);
    assert!(error.to_string().contains("5") && error.to_string().contains("at most 4"));
    server.end(1, true, false).unwrap();
    server.check();
    assert_eq!(server.credit().requests, 2);
}

#[test]
fn pings_take_no_credit_and_go_one_by_one() {
    let (mut client, mut server) = open(1);
    client.begin(Verb::Exists, 64, 0, 1).unwrap();
    server.on_head(&exists(1, 1).0).unwrap();
    assert_eq!(client.begin(Verb::Ping, 0, 0, 0), Ok(2));
    let ping = |id| made(|out| request::encode_ping(id, out)).0;
    assert_eq!(server.on_head(&ping(2)), Ok(Incoming::Request(Verb::Ping)));
    assert_eq!(client.begin(Verb::Ping, 0, 0, 0), Err(ping_again()));
    assert_eq!(server.on_head(&ping(3)), Err(ping_again()));
    server.end(2, false, false).unwrap();
    server.check();
    let pong = crate::control::Pong {
        node_epoch: 1,
        map_epoch: 1,
    };
    let (head, body) = made(|out| pong.encode(2, out));
    assert_eq!(client.on_head(&head), Ok(Expected::Reply(Verb::Ping)));
    let reply = Reply::decode(&head, &body).unwrap();
    assert_eq!(client.on_reply(&head, &reply), Ok(true));
    assert_eq!(client.begin(Verb::Ping, 0, 0, 0), Ok(3));
}

#[test]
fn replies_answer_each_entry_once_in_order() {
    let (mut client, _) = open(2);
    let id = client.begin(Verb::Exists, 200, 0, 4).unwrap();
    let mut take = |flags, first, count| {
        let (head, body) = misses(Verb::Exists, id, flags, first, count);
        client.on_head(&head)?;
        client.on_reply(&head, &Reply::decode(&head, &body).unwrap())
    };
    let more = Flags::MORE;
    assert_eq!(take(more, 0, 2), Ok(false));
    for (flags, first, count, wrong) in [
        (more, 1, 1, "first"),
        (more, 3, 1, "first"),
        (more, 2, 3, "count of records"),
        (Flags::NONE, 2, 1, "entries answered at the last reply"),
    ] {
        let error = take(flags, first, count);
        let Err(SessionError::Answers { field, .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(field, wrong);
    }
    // The last of them counted its one entry.
    assert_eq!(take(Flags::NONE, 3, 1), Ok(true));
    assert_eq!(take(more, 4, 0), Err(SessionError::NotUnderWay { id }));
}

#[test]
fn reply_to_another_verb_or_nothing_is_refused() {
    let (mut client, _) = open(2);
    let id = client.begin(Verb::Exists, 64, 0, 1).unwrap();
    let error = client.on_head(&misses(Verb::Touch, id, Flags::NONE, 0, 1).0);
    let Err(SessionError::WrongVerb { expected, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(expected, "exists");
    let id = 7;
    let error = client.on_head(&misses(Verb::Exists, id, Flags::NONE, 0, 1).0);
    assert_eq!(error, Err(SessionError::NotUnderWay { id }));
    let error = client.on_head(&exists(1, 1).0).unwrap_err();
    assert!(matches!(error, SessionError::Direction { .. }), "{error}");
    let (_, mut server) = open(2);
    let reply = misses(Verb::Exists, 1, Flags::NONE, 0, 1).0;
    let error = server.on_head(&reply).unwrap_err();
    assert!(matches!(error, SessionError::Direction { .. }), "{error}");
    assert_eq!(error.code(), ErrorCode::MalformedFrame);
}

#[test]
fn unknown_verb_is_answered_and_the_connection_goes_on() {
    let (_, mut server) = open(2);
    let mut head = exists(1, 1).0;
    head.verb_number = 95;
    let refused = Incoming::Refused(ErrorCode::UnknownVerb);
    assert_eq!(server.on_head(&head), Ok(refused));
    server.end(1, true, false).unwrap();
    let next = server.on_head(&exists(2, 1).0);
    assert_eq!(next, Ok(Incoming::Request(Verb::Exists)));
    server.check();
}

#[test]
fn rails_are_asked_for_and_answered_once() {
    let (mut client, mut server) = open(2);
    let id = client.begin(Verb::Rails, 24, 0, 0).unwrap();
    let (mut head, body) = made(|out| crate::rails::encode_wanted(id, &[1; 16], [], out));
    let taken = Incoming::Request(Verb::Rails);
    assert_eq!(server.on_head(&head), Ok(taken));
    let request = Request::decode(&head, &body).unwrap();
    server.on_request(&head, &request).unwrap();
    server.end(id, false, false).unwrap();
    server.check();
    head.flags = Flags::REPLY;
    assert_eq!(client.on_head(&head), Ok(Expected::Reply(Verb::Rails)));
}

#[test]
fn credit_that_is_held_comes_back_when_given() {
    let (mut client, mut server) = open(1);
    let id = client.begin(Verb::Exists, 64, 0, 1).unwrap();
    let (head, body) = exists(id, 1);
    server.on_head(&head).unwrap();
    let request = Request::decode(&head, &body).unwrap();
    server.on_request(&head, &request).unwrap();
    assert!(server.end(id, false, true).is_err(), "an entry is open");
    server.answer(id, 0, 1).unwrap();
    server.end(id, false, true).unwrap();
    server.check();
    let (head, body) = misses(Verb::Exists, id, Flags::HELD, 0, 1);
    let reply = Reply::decode(&head, &body).unwrap();
    assert_eq!(client.on_reply(&head, &reply), Ok(true));
    assert_eq!(client.credit().requests, 0);
    assert!(client.begin(Verb::Exists, 64, 0, 1).is_err());
    let credit = server.give_held().unwrap();
    assert_eq!(server.give_held(), None);
    server.check();
    let head = made(|out| credit.encode(out)).0;
    assert_eq!(client.on_head(&head), Ok(Expected::Credit));
    client.on_credit(&credit).unwrap();
    assert!(client.begin(Verb::Exists, 24, 0, 1).is_ok());
    let all = Credit {
        bytes: 0,
        requests: u32::MAX,
    };
    assert!(client.on_credit(&all).is_err());
}

#[test]
fn cancel_names_what_is_under_way() {
    let (_, mut server) = open(2);
    server.on_head(&exists(4, 1).0).unwrap();
    let cancel = |id| made(|out| request::encode_cancel(id, out)).0;
    for (id, is_under_way) in [(4, true), (3, false), (9, false)] {
        let found = server.on_head(&cancel(id));
        assert_eq!(found, Ok(Incoming::Cancel { is_under_way }));
    }
    assert!(server.is_under_way(4), "it is still to be answered");
}

#[test]
fn goodbye_ends_requests_and_what_is_under_way_is_answered() {
    let (mut client, mut server) = open(3);
    let goodbye = Goodbye {
        reason: GoodbyeReason::Draining,
        close_ms: 1000,
    };
    let id = client.begin(Verb::Exists, 64, 0, 1).unwrap();
    server.on_head(&exists(id, 1).0).unwrap();
    server.drain();
    assert!(!server.is_finished());
    // One that was sent before the client knew.
    let refused = Incoming::Refused(ErrorCode::Draining);
    assert_eq!(server.on_head(&exists(id + 1, 1).0), Ok(refused));
    server.end(id + 1, true, false).unwrap();
    let head = made(|out| goodbye.encode(out)).0;
    assert_eq!(client.on_head(&head), Ok(Expected::Goodbye));
    let state = SessionState::Ending;
    let error = client.begin(Verb::Exists, 64, 0, 1);
    assert_eq!(error, Err(SessionError::NotOpen { state }));
    let (head, body) = misses(Verb::Exists, id, Flags::NONE, 0, 1);
    let reply = Reply::decode(&head, &body).unwrap();
    assert_eq!(client.on_reply(&head, &reply), Ok(true));
    server.end(id, true, false).unwrap();
    assert!(server.is_finished());

    let (mut client, mut server) = open(3);
    let head = made(|out| goodbye.encode(out)).0;
    assert_eq!(server.on_head(&head), Ok(Incoming::Goodbye));
    let error = server.on_head(&exists(1, 1).0).unwrap_err();
    assert_eq!(error, SessionError::AfterGoodbye { id: 1 });
    assert_eq!(error.code(), ErrorCode::AfterGoodbye);
    client.end();
    assert_eq!(client.state(), SessionState::Ending);
    server.close();
    assert!(matches!(
        server.on_head(&exists(1, 1).0),
        Err(SessionError::NotOpen { .. })
    ));
}

#[test]
fn error_without_a_request_closes_the_connection() {
    for is_open in [false, true] {
        let mut client = if is_open {
            open(2).0
        } else {
            ClientSession::new(OFFER)
        };
        let error = ErrorFrame {
            code: ErrorCode::NotAuthenticated,
            verb_number: Verb::Hello.number(),
            argument: 0,
            text: "give a token",
        };
        let (head, body) = made(|out| error.encode(0, out));
        assert_eq!(client.on_head(&head), Ok(Expected::Error));
        let reply = Reply::decode(&head, &body).unwrap();
        assert_eq!(client.on_reply(&head, &reply), Ok(true));
        assert_eq!(client.state(), SessionState::Closed);
        assert!(client.on_head(&head).is_err());
    }
}

/// What one end does next.
#[derive(Clone, Debug)]
enum Step {
    Ask {
        count: usize,
    },
    Answer {
        at: usize,
        part: usize,
        is_held: bool,
    },
    Refuse {
        at: usize,
    },
    Give,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..=4_usize).prop_map(|count| Step::Ask { count }),
        3 => (any::<usize>(), 0..=4_usize, any::<bool>())
            .prop_map(|(at, part, is_held)| Step::Answer { at, part, is_held }),
        1 => any::<usize>().prop_map(|at| Step::Refuse { at }),
        1 => Just(Step::Give),
    ]
}

/// Requests as the model knows them: id, entries, entries answered.
type Model = Vec<(u64, usize, usize)>;

fn deliver(client: &mut ClientSession, queue: &mut VecDeque<(FrameHead, Vec<u8>)>) {
    while let Some((head, body)) = queue.pop_front() {
        let expected = client.on_head(&head).unwrap();
        match Reply::decode(&head, &body).unwrap() {
            Reply::Credit(credit) => client.on_credit(&credit).unwrap(),
            reply => {
                client.on_reply(&head, &reply).unwrap();
                assert!(matches!(expected, Expected::Reply(_) | Expected::Error));
            }
        }
    }
}

proptest! {
    #[test]
    fn both_ends_agree_whatever_is_asked_and_answered(steps in proptest::collection::vec(step(), 0..80)) {
        let (mut client, mut server) = open(3);
        let mut model = Model::new();
        let mut queue = VecDeque::new();
        for step in steps {
            match step {
                Step::Ask { count } => {
                    let (head, body) = exists(client.next_id(), count);
                    match client.begin(Verb::Exists, body.len(), 0, count) {
                        Ok(id) => {
                            let request = Request::decode(&head, &body).unwrap();
                            prop_assert_eq!(server.on_head(&head), Ok(Incoming::Request(Verb::Exists)));
                            server.on_request(&head, &request).unwrap();
                            model.push((id, count, 0));
                        }
                        Err(error) => {
                            prop_assert!(error.is_retryable());
                            // What the client does not send, the node would not have taken.
                            deliver(&mut client, &mut queue);
                            let is_short = client.credit().requests == 0;
                            prop_assert!(!is_short || server.on_head(&head).is_err());
                        }
                    }
                }
                Step::Answer { at, part, is_held } if !model.is_empty() => {
                    let at = at % model.len();
                    let (id, count, answered) = model[at];
                    let part = part.min(count - answered);
                    server.answer(id, answered as u32, part).unwrap();
                    let is_last = answered + part == count;
                    let flags = match (is_last, is_held) {
                        (false, _) => Flags::MORE,
                        (true, true) => Flags::HELD,
                        (true, false) => Flags::NONE,
                    };
                    queue.push_back(misses(Verb::Exists, id, flags, answered as u32, part));
                    if is_last {
                        server.end(id, false, is_held).unwrap();
                        model.remove(at);
                    } else {
                        model[at].2 += part;
                    }
                }
                Step::Refuse { at } if !model.is_empty() => {
                    let (id, ..) = model.remove(at % model.len());
                    server.end(id, true, false).unwrap();
                    let error = ErrorFrame {
                        code: ErrorCode::Internal,
                        verb_number: Verb::Exists.number(),
                        argument: 0,
                        text: "",
                    };
                    queue.push_back(made(|out| error.encode(id, out)));
                }
                Step::Give => {
                    if let Some(credit) = server.give_held() {
                        queue.push_back(made(|out| credit.encode(out)));
                    }
                    deliver(&mut client, &mut queue);
                }
                Step::Answer { .. } | Step::Refuse { .. } => {}
            }
            server.check();
            prop_assert_eq!(server.under_way(), model.len());
        }
        deliver(&mut client, &mut queue);
        if let Some(credit) = server.give_held() {
            client.on_credit(&credit).unwrap();
        }
        prop_assert_eq!(client.credit(), server.credit());
        prop_assert_eq!(client.under_way(), server.under_way());
    }
}
