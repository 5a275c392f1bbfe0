use continuum_worker::select;

async fn forms() {
    let ready = || std::future::ready(1);
    select! {
        biased;
        _ = ready() => {}
    }
    select! {
        _ = ready() => {}
        else => {}
    }
    select! {
        Some(_) = async { Some(1) } => {}
    }
    select! {}
}

fn main() {}
