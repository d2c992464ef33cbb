//! `tokenway epp`: as `serve`, with Envoy's endpoint picker protocol on the data port.

use std::net::SocketAddr;

use clap::Args;

use super::serve::SourceArgs;
use crate::config::Overrides;

/// Arguments of `tokenway epp`.
#[derive(Args, Clone, Debug)]
pub struct EppArgs {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Address of the gRPC port that Envoy asks, in place of server.listen; TLS by [server.tls]
    #[arg(long, env = "TOKENWAY_GRPC_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:9002")]
    grpc_listen: SocketAddr,
    #[command(flatten)]
    around: Overrides,
}

impl EppArgs {
    /// Values that take precedence over the source.
    pub fn overrides(&self) -> Overrides {
        Overrides { listen: Some(self.grpc_listen), ..self.around.clone() }
    }
}
