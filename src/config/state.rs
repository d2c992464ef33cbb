//! Where a gateway keeps what it learns over days, unless `drift.state` says.
//!
//! A place of the service manager, else the user's state directory, else beside the file. The name has the admin port, so
//! that two gateways of one machine have one each; a gateway on a port that the system picks has none.

use std::fs::{DirEntry, File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::state_file::UNFINISHED;

/// `drift.state`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DriftState {
    /// Absent: see [`DriftState::settled`].
    #[default]
    Default,
    /// Kept nowhere.
    Off,
    /// In this file.
    At(PathBuf),
}

impl DriftState {
    /// The file, where there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::At(path) => Some(path),
            Self::Default | Self::Off => None,
        }
    }

    /// A place where the key is absent.
    pub(super) fn settled(self, place: Option<&StatePlace>) -> Self {
        match (self, place) {
            (Self::Default, Some(place)) => Self::At(place.file("drift")),
            (state, _) => state,
        }
    }
}

/// Where the service manager wants state to be kept: systemd, and the manifests of this project.
pub(super) fn directory_given(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let paths = env("STATE_DIRECTORY").filter(|paths| !paths.is_empty())?;
    // systemd gives several directories separated by colons.
    Some(PathBuf::from(paths.split(':').next().unwrap_or_default()))
}

/// Where one gateway keeps its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePlace {
    directory: PathBuf,
    port: u16,
}

impl StatePlace {
    /// The place of a gateway; `None` for one on a port that the system picks.
    pub(super) fn of(
        admin: SocketAddr,
        file: Option<&Path>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        if admin.port() == 0 {
            return None;
        }
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let directory = directory_given(env)
            .or_else(|| Some(PathBuf::from(set("XDG_STATE_HOME")?).join("tokenway")))
            .or_else(|| Some(PathBuf::from(set("HOME")?).join(".local/state/tokenway")));
        let beside = || file.map(|file| file.parent().unwrap_or_else(|| Path::new("")).to_owned());
        Some(Self { directory: directory.or_else(beside)?, port: admin.port() })
    }

    /// The file of one kind of state.
    pub fn file(&self, kind: &str) -> PathBuf {
        self.directory.join(format!("{kind}-{}.json", self.port))
    }

    /// Held while a gateway writes the others; made where there is none.
    ///
    /// # Errors
    /// A directory or file that cannot be written.
    pub fn lock_file(&self) -> io::Result<File> {
        std::fs::create_dir_all(&self.directory)?;
        let path = self.directory.join(format!("gateway-{}.lock", self.port));
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
    }

    /// Files of which a write did not end.
    pub fn unfinished(&self) -> impl Iterator<Item = PathBuf> {
        let port = format!("-{}.json.", self.port);
        let is_ours = move |name: &str| name.contains(&port) && name.ends_with(UNFINISHED);
        let files = std::fs::read_dir(&self.directory).into_iter().flatten().filter_map(Result::ok);
        files.filter(move |file| file.file_name().to_str().is_some_and(&is_ours)).map(|file| file.path())
    }

    /// The file of this kind that another admin port wrote last, where there is none of ours.
    pub fn file_of_another_port(&self, kind: &str) -> Option<PathBuf> {
        if self.file(kind).symlink_metadata().is_ok() {
            return None;
        }
        let is_of_a_port = |name: &str| {
            let port = name.strip_prefix(kind)?.strip_prefix('-')?.strip_suffix(".json")?;
            port.parse::<u16>().ok()
        };
        let files = std::fs::read_dir(&self.directory).ok()?.filter_map(Result::ok);
        let others = files.filter(|file| file.file_name().to_str().and_then(is_of_a_port).is_some());
        let written = |file: &DirEntry| file.metadata().and_then(|file| file.modified()).ok();
        others.max_by_key(written).map(|file| file.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_str;

    #[test]
    fn a_relative_file_of_state_lies_where_the_service_manager_has_room_for_it() {
        let text = "[[pool]]\nname = \"p\"\nreplicas = [\"http://a:1\"]\n[[pool]]\nname = \"q\"\nreplicas = [\"http://b:1\"]\n\
                    [[route]]\nmodel = \"m\"\npools = [\"p\"]\n[route.canary]\npool = \"q\"\n\
                    steps = [{ weight = 5, soak = \"1m\" }]\nstate = \"canary.json\"\n[drift]\nstate = \"drift.json\"\n";
        let under = |directory: &str| {
            let env = |name: &str| (name == "STATE_DIRECTORY").then(|| directory.to_owned());
            let config = check_str("/etc/tokenway/gateway.toml", text, &env).unwrap();
            let canary = config.routes[0].canary.clone().unwrap();
            [canary.state.unwrap(), config.drift.state.path().unwrap().to_owned()]
        };
        assert_eq!(
            under("/var/lib/tokenway:/x"),
            ["canary", "drift"].map(|name| PathBuf::from(format!("/var/lib/tokenway/{name}.json")))
        );
        assert_eq!(
            under(""),
            ["canary", "drift"].map(|name| PathBuf::from(format!("/etc/tokenway/{name}.json")))
        );
    }

    #[test]
    fn the_state_is_where_the_machine_keeps_states() {
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a Path>, u16, Option<&'a str>);
        let file = Some(Path::new("/etc/tokenway/gateway.toml"));
        let table: [Case<'_>; 6] = [
            (
                &[("STATE_DIRECTORY", "/var/lib/tw:/x"), ("HOME", "/h/u")],
                file,
                9090,
                Some("/var/lib/tw/drift-9090.json"),
            ),
            (&[("XDG_STATE_HOME", "/s"), ("HOME", "/h/u")], None, 9090, Some("/s/tokenway/drift-9090.json")),
            (&[("HOME", "/h/u")], file, 9191, Some("/h/u/.local/state/tokenway/drift-9191.json")),
            (&[], file, 9090, Some("/etc/tokenway/drift-9090.json")),
            (&[("HOME", "")], None, 9090, None),
            (&[("HOME", "/h/u")], file, 0, None),
        ];
        for (variables, file, port, expected) in table {
            let env = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            let place = StatePlace::of(([127, 0, 0, 1], port).into(), file, &env);
            let state = DriftState::Default.settled(place.as_ref());
            assert_eq!(state.path(), expected.map(Path::new), "{variables:?}");
        }
        let place = StatePlace::of(([127, 0, 0, 1], 9090).into(), file, &|_| Some("/x".to_owned()));
        assert_eq!(DriftState::Off.settled(place.as_ref()), DriftState::Off);
    }
}
