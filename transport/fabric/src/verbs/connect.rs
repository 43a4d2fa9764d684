//! The steps of a queue pair's states on the way to a connection, as the NIC takes them.

use super::abi::{self, QpAttr};
use super::address::QueuePairAddress;
use super::device::LinkLayer;
use super::error::VerbsError;
use super::settings::QueuePairSettings;

/// After a missing receive the peer waits 0.64 ms at least: a receiver that is only slow has
/// posted one by then, and 6 waits show one that does not.
const RECEIVER_NOT_READY_TIMER: u8 = 12;

/// Routers on the way at most, as for other packets of a host.
const HOP_LIMIT: u8 = 64;

/// To the state in which receives may be posted.
pub(super) fn init(settings: &QueuePairSettings) -> (QpAttr, i32) {
    let change = QpAttr {
        qp_state: abi::QPS_INIT,
        qp_access_flags: settings.peer_access.flags().cast_unsigned(),
        pkey_index: 0,
        port_num: settings.port,
        ..QpAttr::default()
    };
    let mask = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;
    (change, mask)
}

/// To the state in which the peer is served.
pub(super) fn ready_to_receive(
    settings: &QueuePairSettings,
    ours: &QueuePairAddress,
    peer: &QueuePairAddress,
    gid_index: u8,
) -> (QpAttr, i32) {
    // InfiniBand needs the GID only between subnets, which its first half names.
    let is_global = ours.link != LinkLayer::InfiniBand || ours.gid.0[..8] != peer.gid.0[..8];
    let change = QpAttr {
        qp_state: abi::QPS_RTR,
        path_mtu: ours.mtu.min(peer.mtu).raw().into(),
        dest_qp_num: peer.queue_pair,
        rq_psn: peer.first_packet,
        max_dest_rd_atomic: ours.reads_in,
        min_rnr_timer: RECEIVER_NOT_READY_TIMER,
        ah_attr: abi::AhAttr {
            grh: abi::GlobalRoute {
                dgid: abi::RawGid(peer.gid.0),
                flow_label: 0,
                sgid_index: gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: settings.traffic_class,
            },
            dlid: peer.lid,
            sl: settings.service_level,
            is_global: is_global.into(),
            port_num: settings.port,
            ..abi::AhAttr::default()
        },
        ..QpAttr::default()
    };
    let mask = abi::QP_STATE
        | abi::QP_AV
        | abi::QP_PATH_MTU
        | abi::QP_DEST_QPN
        | abi::QP_RQ_PSN
        | abi::QP_MAX_DEST_RD_ATOMIC
        | abi::QP_MIN_RNR_TIMER;
    (change, mask)
}

/// To the state in which this end's requests are done, too.
pub(super) fn ready_to_send(
    settings: &QueuePairSettings,
    ours: &QueuePairAddress,
    peer: &QueuePairAddress,
    reads_out_max: u8,
) -> Result<(QpAttr, i32), VerbsError> {
    let change = QpAttr {
        qp_state: abi::QPS_RTS,
        timeout: settings.timeout_exponent()?,
        retry_cnt: settings.retry_count,
        rnr_retry: settings.receiver_retry_count,
        sq_psn: ours.first_packet,
        // More than the peer answers at a time would make it fail the queue pair.
        max_rd_atomic: settings.reads.min(reads_out_max).min(peer.reads_in),
        ..QpAttr::default()
    };
    let mask = abi::QP_STATE
        | abi::QP_TIMEOUT
        | abi::QP_RETRY_CNT
        | abi::QP_RNR_RETRY
        | abi::QP_SQ_PSN
        | abi::QP_MAX_QP_RD_ATOMIC;
    Ok((change, mask))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::device::Mtu;
    use crate::verbs::gid::Gid;

    fn address(link: LinkLayer, gid: &str, mtu: u32, reads_in: u8) -> QueuePairAddress {
        QueuePairAddress {
            link,
            mtu: Mtu::from_raw(mtu).unwrap(),
            reads_in,
            queue_pair: 17,
            first_packet: 99,
            lid: 3,
            gid: Gid::from_ip(gid.parse().unwrap()),
        }
    }

    #[test]
    fn ready_to_receive_takes_the_shorter_payload_and_goes_by_gid_where_needed() {
        let settings = QueuePairSettings::default();
        let step = |link, ours, theirs| {
            let ours = address(link, ours, 5, 16);
            let peer = address(link, theirs, 3, 4);
            ready_to_receive(&settings, &ours, &peer, 7).0
        };
        let over_ethernet = step(LinkLayer::Ethernet, "10.0.0.1", "10.0.0.2");
        assert_eq!(over_ethernet.path_mtu, 3);
        assert_eq!(over_ethernet.max_dest_rd_atomic, 16);
        assert_eq!(over_ethernet.ah_attr.is_global, 1);
        assert_eq!(over_ethernet.ah_attr.grh.sgid_index, 7);
        assert_eq!(over_ethernet.rq_psn, 99);
        let one_subnet = step(LinkLayer::InfiniBand, "fe80::1", "fe80::2");
        assert_eq!(
            (one_subnet.ah_attr.is_global, one_subnet.ah_attr.dlid),
            (0, 3)
        );
        let two_subnets = step(LinkLayer::InfiniBand, "fe80::1", "2001:db8::2");
        assert_eq!(two_subnets.ah_attr.is_global, 1);
    }

    #[test]
    fn ready_to_send_reads_no_more_than_the_peer_answers() {
        let settings = QueuePairSettings::default();
        let ours = address(LinkLayer::Ethernet, "10.0.0.1", 5, 16);
        let reads = |reads_in, out_max| {
            let peer = address(LinkLayer::Ethernet, "10.0.0.2", 5, reads_in);
            let step = ready_to_send(&settings, &ours, &peer, out_max).unwrap();
            step.0.max_rd_atomic
        };
        assert_eq!((reads(4, 16), reads(64, 8), reads(64, 64)), (4, 8, 16));
    }
}
